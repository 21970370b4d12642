{{- define "tessera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "tessera.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tessera.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* What selects pods; the argument is (list . COMPONENT). */ -}}
{{- define "tessera.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tessera.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tessera.podLabels" -}}
{{ include "tessera.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{- define "tessera.labels" -}}
{{ include "tessera.podLabels" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end -}}

{{- define "tessera.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* Requests are limits; the argument is (list RESOURCES DEVICE…), a device being a resourceName and a count. */ -}}
{{- define "tessera.amounts" -}}
cpu: {{ (index . 0).cpu | quote }}
memory: {{ (index . 0).memory | quote }}
{{- range rest . }}{{ if .count }}
{{ .resourceName }}: {{ .count | int64 | toString | quote }}
{{- end }}{{ end }}
{{- end -}}

{{- define "tessera.resources" -}}
requests:
  {{- include "tessera.amounts" . | nindent 2 }}
limits:
  {{- include "tessera.amounts" . | nindent 2 }}
{{- end -}}

{{- define "tessera.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* The argument is a list of the capabilities that the container keeps. */ -}}
{{- define "tessera.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]{{ with . }}, add: [{{ join ", " . }}]{{ end }}}
{{- end -}}

{{- /* What every pod has. The argument is (list . COMPONENT-NAME). */ -}}
{{- define "tessera.pod" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ index . 1 }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- include "tessera.podSecurity" $root | nindent 2 }}
{{- end -}}

{{- /* Further fields of pods that compute. */ -}}
{{- define "tessera.placement" -}}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- include "tessera.nodes" . }}
{{- end -}}

{{- /* The nodes on which a pod may run; the Job of the weights has them, too, because only they may reach the volume. */ -}}
{{- define "tessera.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Ranks meet inside the pod, whatever networks the node has. */ -}}
{{- define "tessera.gpuEnv" -}}
{{- if .Values.gpu.count }}
- {name: NCCL_SOCKET_IFNAME, value: lo}
- {name: NCCL_IB_DISABLE, value: "1"}
- {name: NCCL_DEBUG, value: WARN}
{{- include "tessera.nvlsEnv" . }}
{{- end }}
{{- end -}}

{{- /* NVLS needs a fabric manager that serves the GPUs, which a virtual machine may lack. */ -}}
{{- define "tessera.nvlsEnv" -}}
{{- if not .Values.gpu.nvls }}
- {name: NCCL_NVLS_ENABLE, value: "0"}
{{- end }}
{{- end -}}

{{- define "tessera.extraMounts" -}}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . }}
{{- end }}
{{- end -}}

{{- define "tessera.extraVolumes" -}}
{{- with .Values.extraVolumes }}
{{- toYaml . }}
{{- end }}
{{- end -}}

{{- define "tessera.scratchVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.shm.size }}}
{{- end -}}

{{- /* A claim's storage; the argument has size and storageClassName. */ -}}
{{- define "tessera.storage" -}}
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .size }}}
{{- end -}}

{{- define "tessera.config" -}}
{{- $own := dict
  "listen" (dict
    "http" (dict "address" "0.0.0.0" "port" 8080)
    "grpc" (ternary (dict "address" "127.0.0.1" "port" 8081) "off" .Values.grpc.enabled)
    "admin" (dict "address" "0.0.0.0" "port" 9090))
  "keys_file" "/etc/tessera/keys/keys.txt"
  "data_folder" "/var/lib/tessera/data"
  "drain_time" (printf "%ds" (int64 .Values.drainSeconds)) -}}
{{- $host := "" -}}
{{- if .Values.ingress.enabled -}}{{- $host = .Values.ingress.host -}}{{- else if .Values.httpRoute.enabled -}}{{- $host = .Values.httpRoute.host -}}{{- end -}}
{{- if and $host (not .Values.config.public_url) -}}
{{- $_ := set $own "public_url" (printf "https://%s" $host) -}}
{{- end -}}
{{- if .Values.postgresql.enabled -}}
{{- $_ := set $own "data_folder" "/var/lib/tessera-shared/data" -}}
{{- $_ := set $own "store" (dict "dsn" .Values.postgresql.dsn "password_file" "/etc/tessera/postgresql/password") -}}
{{- end -}}
{{- if .Values.hosts.enabled -}}
{{- $_ := set $own "nodes" (dict
  "listen" (dict "address" "0.0.0.0" "port" 8082)
  "certificate_chain" "/etc/tessera/nodes/tls.crt"
  "private_key" "/etc/tessera/nodes/tls.key"
  "authority" "/etc/tessera/nodes/ca.crt"
  "token_file" "/etc/tessera/nodes/token") -}}
{{- end -}}
{{- range $key := keys (omit .Values.config "nodes" "public_url") -}}
{{- if hasKey $own $key -}}{{ fail (printf "config.%s is set by the chart itself" $key) }}{{- end -}}
{{- end -}}
{{- toYaml (merge $own .Values.config) -}}
{{- end -}}
