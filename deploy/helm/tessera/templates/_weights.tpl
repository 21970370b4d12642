{{- /* The file that exists once every file of the weights does: for a list the script's, for a repository the Job's. */ -}}
{{- define "tessera.weightsMark" -}}
{{- with .Values.weights -}}
{{- if .repository -}}
/models/huggingface/.complete-{{ .repository | replace "/" "--" }}-{{ default "newest" .revision | replace "/" "--" }}
{{- else -}}
/models/{{ .name }}/.complete
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Whether the pod that reads the weights fills their volume itself. */ -}}
{{- define "tessera.podFillsWeights" -}}
{{- if and .Values.weights.enabled (eq .Values.weights.accessMode "ReadWriteOnce") -}}true{{- end -}}
{{- end -}}

{{- /* The container that fills the volume of the weights, of a pod or of the Job; the argument is (list . NAME). */ -}}
{{- define "tessera.fillWeights" -}}
{{- $root := index . 0 -}}
{{- $weights := $root.Values.weights -}}
- name: {{ index . 1 }}
  {{- if $weights.repository }}
  {{- $pull := list "pull" $weights.repository -}}
  {{- with $weights.revision -}}{{- $pull = concat $pull (list "--revision" .) -}}{{- end }}
  image: {{ include "tessera.image" $root }}
  {{- if include "tessera.podFillsWeights" $root }}
  args: [{{ join ", " $pull }}]
  {{- else }}
  # The schema lets no character of a shell's into these names.
  command: [/bin/sh, -c, "/opt/tessera/bin/tessera {{ join " " $pull }} && sync && : >{{ include "tessera.weightsMark" $root }}"]
  {{- end }}
  env:
    - {name: HOME, value: /tmp}
    - {name: HF_HOME, value: /models/huggingface}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ $weights.existingSecret }}, key: token, optional: true}
  {{- else }}
  image: {{ $weights.image }}
  command: [/bin/sh, /etc/tessera/weights/fill-weights.sh]
  args: [/models/{{ $weights.name }}, /etc/tessera/weights/weights.sha256]
  env:
    - {name: WEIGHTS_URL, value: {{ $weights.url | quote }}}
    - {name: WEIGHTS_TOKEN_FILE, value: /etc/tessera/weights-token/token}
  {{- end }}
    {{- with $root.Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  resources:
    {{- include "tessera.resources" (list $weights.resources) | nindent 4 }}
  securityContext:
    {{- include "tessera.containerSecurity" (list) | nindent 4 }}
  volumeMounts:
    {{- if not $weights.repository }}
    - {name: weights-list, mountPath: /etc/tessera/weights, readOnly: true}
    - {name: weights-token, mountPath: /etc/tessera/weights-token, readOnly: true}
    {{- end }}
    - {name: weights, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /* The volumes of that container; mode 288 is 0440. */ -}}
{{- define "tessera.fillVolumes" -}}
- name: weights
  persistentVolumeClaim: {claimName: {{ include "tessera.fullname" . }}-weights}
{{- if not .Values.weights.repository }}
- name: weights-list
  configMap: {name: {{ include "tessera.fullname" . }}-weights, defaultMode: 288}
- name: weights-token
  secret: {secretName: {{ .Values.weights.existingSecret }}, defaultMode: 288, optional: true}
{{- end }}
{{- end -}}

{{- /* The init container of a pod that reads the weights: it fills the volume, or waits until the Job has filled it. */ -}}
{{- define "tessera.weightsInit" -}}
{{- if include "tessera.podFillsWeights" . -}}
{{- include "tessera.fillWeights" (list . "weights") }}
{{- else if .Values.weights.enabled -}}
- name: weights
  image: {{ include "tessera.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -c, "until [ -e {{ include "tessera.weightsMark" . }} ]; do echo waiting for the weights; sleep 5; done"]
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {cpu: 100m, memory: 64Mi}
  securityContext:
    {{- include "tessera.containerSecurity" (list) | nindent 4 }}
  volumeMounts:
    - {name: weights, mountPath: /models, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Where a pod's other containers find the weights. */ -}}
{{- define "tessera.weightsMount" -}}
{{- if .Values.weights.enabled }}
- {name: weights, mountPath: /models, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tessera.weightsEnv" -}}
{{- if and .Values.weights.enabled .Values.weights.repository }}
- {name: HF_HOME, value: /models/huggingface}
{{- end }}
{{- end -}}

{{- define "tessera.weightsVolume" -}}
{{- if include "tessera.podFillsWeights" . }}
{{- include "tessera.fillVolumes" . }}
{{- else if .Values.weights.enabled }}
- name: weights
  persistentVolumeClaim: {claimName: {{ include "tessera.fullname" . }}-weights, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Where the container that fills the volume may call. */ -}}
{{- define "tessera.fillEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    - {port: 443, protocol: TCP}
{{- end -}}

{{- /* Refuses more pods than one that would mount a volume of one node: on two nodes one would wait for the other for ever. */ -}}
{{- define "tessera.checkVolumes" -}}
{{- $batch := min .Values.batch.shards .Values.batch.parallelism | int -}}
{{- if and .Values.batch.enabled (eq .Values.batch.accessMode "ReadWriteOnce") (gt $batch 1) -}}
{{- fail (printf "batch.accessMode is ReadWriteOnce, which one pod can use, and %d pods run at once; set it to ReadWriteMany, or batch.parallelism to 1" $batch) -}}
{{- end -}}
{{- if include "tessera.podFillsWeights" . -}}
{{- $pods := 0 -}}
{{- if .Values.server.enabled -}}
{{- $pods = ternary .Values.autoscaling.keda.maxReplicas .Values.replicas .Values.autoscaling.keda.enabled | int -}}
{{- end -}}
{{- if .Values.batch.enabled -}}{{- $pods = add $pods $batch | int -}}{{- end -}}
{{- if .Values.train.enabled -}}{{- $pods = add $pods 1 | int -}}{{- end -}}
{{- if gt $pods 1 -}}
{{- fail (printf "weights.accessMode is ReadWriteOnce, which one pod can use, and %d pods of this release read the weights; set it to ReadWriteMany" $pods) -}}
{{- end -}}
{{- end -}}
{{- end -}}
