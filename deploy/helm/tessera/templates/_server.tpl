{{- define "tessera.serverMetadata" -}}
labels:
  {{- include "tessera.podLabels" (list . "server") | nindent 2 }}
annotations:
  # Another configuration is read by other pods, and other weights are brought by others.
  checksum/config: {{ printf "%s%s" (include "tessera.config" .) (ternary (toYaml .Values.weights) "" (eq "true" (include "tessera.podFillsWeights" .))) | sha256sum }}
  {{- with include "tessera.podAnnotations" . }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* What the server and its doctor have alike. */ -}}
{{- define "tessera.serverContainer" -}}
env:
  - {name: HOME, value: /tmp}
  - {name: TESSERA_CERTIFICATES, value: /var/lib/tessera/certificates}
  {{- include "tessera.ranksEnv" . | nindent 2 }}
  {{- include "tessera.weightsEnv" . | nindent 2 }}
  {{- if .Values.gpu.count }}
  - {name: CUDA_CACHE_PATH, value: /var/lib/tessera/cuda}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- include "tessera.ranksResources" . | nindent 2 }}
securityContext:
  {{- include "tessera.ranksSecurity" . | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/tessera/config, readOnly: true}
  - {name: keys, mountPath: /etc/tessera/keys, readOnly: true}
  {{- if .Values.hosts.enabled }}
  - {name: nodes, mountPath: /etc/tessera/nodes, readOnly: true}
  {{- end }}
  - {name: data, mountPath: /var/lib/tessera}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  {{- include "tessera.weightsMount" . | nindent 2 }}
  {{- if .Values.postgresql.enabled }}
  - {name: shared, mountPath: /var/lib/tessera-shared}
  - {name: postgresql, mountPath: /etc/tessera/postgresql, readOnly: true}
  {{- end }}
  {{- include "tessera.extraMounts" . | nindent 2 }}
{{- end -}}

{{- /* The pod that serves, of a StatefulSet or, with nodes, of a LeaderWorkerSet. */ -}}
{{- define "tessera.serverPod" -}}
{{ include "tessera.pod" (list . (include "tessera.fullname" .)) }}
{{- include "tessera.placement" . | nindent 0 }}
terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.drainSeconds 15 }}
initContainers:
  {{- with include "tessera.weightsInit" . }}
  {{- . | nindent 2 }}
  {{- end }}
  # What would keep the server from running well here is an error of this container, with its reason in the log.
  - name: doctor
    image: {{ include "tessera.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [doctor, --config, /etc/tessera/config/tessera.yaml]
    {{- include "tessera.serverContainer" . | nindent 4 }}
containers:
  - name: tessera
    image: {{ include "tessera.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [serve, --config, /etc/tessera/config/tessera.yaml]
    {{- include "tessera.serverContainer" . | nindent 4 }}
    ports:
      - {name: http, containerPort: 8080, protocol: TCP}
      - {name: admin, containerPort: 9090, protocol: TCP}
      {{- if .Values.hosts.enabled }}
      - {name: nodes, containerPort: 8082, protocol: TCP}
      {{- end }}
    startupProbe:
      httpGet: {path: /livez, port: admin}
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /livez, port: admin}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: admin}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 2
    lifecycle:
      preStop:
        exec: {command: [sleep, {{ .Values.preStopSeconds | int64 | toString | quote }}]}
  {{- if .Values.grpc.enabled }}
  {{- include "tessera.grpcContainer" . | nindent 2 }}
  {{- end }}
volumes:  # mode 288 is 0440
  - name: config
    configMap: {name: {{ include "tessera.fullname" . }}-config, defaultMode: 288}
  - name: keys
    secret: {secretName: {{ .Values.existingSecret }}, defaultMode: 288}
  {{- if .Values.hosts.enabled }}
  {{- include "tessera.nodesVolume" . | nindent 2 }}
  - name: data
    persistentVolumeClaim: {claimName: {{ include "tessera.fullname" . }}-data}
  {{- end }}
  {{- include "tessera.scratchVolumes" . | nindent 2 }}
  {{- include "tessera.weightsVolume" . | nindent 2 }}
  {{- include "tessera.extraVolumes" . | nindent 2 }}
  {{- if .Values.grpc.enabled }}
  {{- include "tessera.grpcVolumes" . | nindent 2 }}
  {{- end }}
  {{- if .Values.postgresql.enabled }}
  - name: shared
    persistentVolumeClaim: {claimName: {{ include "tessera.fullname" . }}-shared}
  - name: postgresql
    secret: {secretName: {{ .Values.postgresql.existingSecret }}, defaultMode: 288}
  {{- end }}
{{- end -}}
