{{- /* nginx in front of gRPC, which listens on the loopback of the pod. */ -}}
{{- define "tessera.grpcContainer" -}}
- name: grpc
  image: {{ .Values.grpc.image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [nginx, -e, stderr, -c, /etc/tessera/grpc/nginx.conf]
  ports:
    - {name: grpc, containerPort: 8443, protocol: TCP}
  resources:
    {{- include "tessera.resources" (list .Values.grpc.resources) | nindent 4 }}
  readinessProbe:
    tcpSocket: {port: grpc}
  # As the server; the image's signal to end lets calls under way end.
  lifecycle:
    preStop:
      exec: {command: [sleep, {{ .Values.preStopSeconds | int64 | toString | quote }}]}
  securityContext:
    {{- include "tessera.containerSecurity" (list) | nindent 4 }}
  volumeMounts:
    - {name: grpc-config, mountPath: /etc/tessera/grpc, readOnly: true}
    - {name: grpc-tls, mountPath: /etc/tessera/grpc-tls, readOnly: true}
    - {name: grpc-tmp, mountPath: /tmp}
{{- end -}}

{{- /* Its volumes; mode 288 is 0440. */ -}}
{{- define "tessera.grpcVolumes" -}}
- name: grpc-config
  configMap: {name: {{ include "tessera.fullname" . }}-grpc, defaultMode: 288}
- name: grpc-tls
  secret: {secretName: {{ .Values.grpc.existingSecret }}, defaultMode: 288}
- name: grpc-tmp
  emptyDir: {sizeLimit: 256Mi}
{{- end -}}
