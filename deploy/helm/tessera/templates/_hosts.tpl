{{- /* The devices that a node lends, as groups name them after NODE/. */ -}}
{{- define "tessera.lentDevices" -}}
{{- $kind := ternary "cuda" "cpu" (gt (int .Values.gpu.count) 0) -}}
{{- $lent := list -}}
{{- range until (int (default .Values.hosts.cpuRanks .Values.gpu.count)) -}}{{- $lent = append $lent (printf "%s:%d" $kind .) -}}{{- end -}}
{{- join "," $lent -}}
{{- end -}}

{{- /* Refuses groups that name another node, or another device of one, than there will be, and a node that no group names. */ -}}
{{- define "tessera.checkDevices" -}}
{{- $hosts := .Values.hosts -}}
{{- $lent := splitList "," (include "tessera.lentDevices" .) -}}
{{- $missing := dict -}}
{{- if $hosts.enabled -}}
{{- range untilStep 1 (int $hosts.size) 1 -}}{{- $_ := set $missing (printf "node-%d" .) true -}}{{- end -}}
{{- end -}}
{{- $nodes := keys $missing | sortAlpha -}}
{{- range $group := .Values.config.groups -}}
{{- range $device := $group.devices -}}
{{- if regexMatch "^[a-z0-9][a-z0-9.-]*/(cpu|cuda):[0-9]+$" $device -}}
{{- $parts := splitList "/" $device -}}
{{- if not $hosts.enabled -}}
{{- fail (printf "config.groups names %s; set hosts.enabled for devices of nodes" $device) -}}
{{- end -}}
{{- if not (has (first $parts) $nodes) -}}
{{- fail (printf "config.groups names %s; the nodes of hosts.size %d are %s" $device (int $hosts.size) (join ", " $nodes)) -}}
{{- end -}}
{{- if not (has (last $parts) $lent) -}}
{{- fail (printf "config.groups names %s; a node lends %s" $device (join ", " $lent)) -}}
{{- end -}}
{{- $_ := unset $missing (first $parts) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tessera.checkOwnDevices" . -}}
{{- with keys $missing | sortAlpha -}}
{{- fail (printf "no group of config.groups names a device of %s; fix config.groups or hosts.size %d" (join ", " .) (int $hosts.size)) -}}
{{- end -}}
{{- end -}}

{{- /* Refuses groups that name other GPUs of the server's pod than gpu.count gives it, and a GPU that no group uses. GPU-… and MIG-…
are names that only the node knows. */ -}}
{{- define "tessera.checkOwnDevices" -}}
{{- $count := int .Values.gpu.count -}}
{{- $used := dict -}}
{{- range $group := .Values.config.groups -}}
{{- range $device := $group.devices -}}
{{- if regexMatch "^(cuda|GPU-|MIG-)" $device -}}
{{- if eq $count 0 -}}{{- fail (printf "config.groups names %s; set gpu.count to the number of GPUs of the pod" $device) -}}{{- end -}}
{{- if and (regexMatch "^cuda:[0-9]+$" $device) (ge (int (trimPrefix "cuda:" $device)) $count) -}}
{{- fail (printf "config.groups names %s; the pod's GPUs with gpu.count %d are cuda:0 to cuda:%d" $device $count (sub $count 1)) -}}
{{- end -}}
{{- $_ := set $used $device true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $byName := false -}}
{{- range $device := keys $used -}}{{- if not (hasPrefix "cuda:" $device) -}}{{- $byName = true -}}{{- end -}}{{- end -}}
{{- if not $byName -}}
{{- range $number := until $count -}}
{{- if not (hasKey $used (printf "cuda:%d" $number)) -}}
{{- fail (printf "gpu.count is %d, and no group of config.groups names cuda:%d; name it under devices, or set gpu.count to the GPUs that groups use" $count $number) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Whom ranks on GPUs of several hosts exchange tensors with, at ports that the system gives them. */ -}}
{{- define "tessera.ranks" -}}
- podSelector:
    matchExpressions:
      - {key: app.kubernetes.io/name, operator: In, values: [{{ include "tessera.name" . }}]}
      - {key: app.kubernetes.io/instance, operator: In, values: [{{ .Release.Name }}]}
      - {key: app.kubernetes.io/component, operator: In, values: [server, node]}
{{- end -}}

{{- /* The pod network finds the ranks of several hosts; what they exchange goes over the adapters. */ -}}
{{- define "tessera.ranksEnv" -}}
{{- if .Values.infiniband.enabled }}
- {name: NCCL_SOCKET_IFNAME, value: {{ .Values.infiniband.interface | quote }}}
- {name: NCCL_IB_HCA, value: {{ .Values.infiniband.adapters | quote }}}
{{- if ge (int .Values.infiniband.gidIndex) 0 }}
- {name: NCCL_IB_GID_INDEX, value: {{ .Values.infiniband.gidIndex | int64 | toString | quote }}}
{{- end }}
- {name: NCCL_DEBUG, value: WARN}
{{- include "tessera.nvlsEnv" . }}
{{- else }}
{{- include "tessera.gpuEnv" . }}
{{- end }}
{{- end -}}

{{- /* Annotations of the server's pods and of its nodes': those that are given, and the secondary networks. */ -}}
{{- define "tessera.podAnnotations" -}}
{{- $annotations := .Values.podAnnotations -}}
{{- with .Values.infiniband.networks -}}
{{- $key := "k8s.v1.cni.cncf.io/networks" -}}
{{- if hasKey $annotations $key -}}
{{- fail (printf "podAnnotations has %s, and infiniband.networks sets it; name the networks in one of them" $key) -}}
{{- end -}}
{{- $annotations = merge (dict $key (join "," .)) $annotations -}}
{{- end -}}
{{- with $annotations -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{- /* An adapter reads memory that is pinned. */ -}}
{{- define "tessera.ranksSecurity" -}}
{{- include "tessera.containerSecurity" (ternary (list "IPC_LOCK") (list) .Values.infiniband.enabled) -}}
{{- end -}}

{{- define "tessera.ranksResources" -}}
{{- $infiniband := .Values.infiniband -}}
{{- $adapters := dict -}}
{{- if $infiniband.enabled -}}
{{- $count := ternary (mul (int $infiniband.countPerGpu) (int .Values.gpu.count)) (int $infiniband.count) (gt (int $infiniband.countPerGpu) 0) -}}
{{- $adapters = dict "resourceName" $infiniband.resourceName "count" $count -}}
{{- end -}}
{{- include "tessera.resources" (list .Values.resources .Values.gpu $adapters) -}}
{{- end -}}

{{- define "tessera.nodesVolume" -}}
- name: nodes
  secret: {secretName: {{ .Values.hosts.existingSecret }}, defaultMode: 288}
{{- end -}}

{{- /* The pod that lends its devices to the server; LWS_LEADER_ADDRESS and LWS_WORKER_INDEX are the set's, in every pod. */ -}}
{{- define "tessera.nodePod" -}}
{{ include "tessera.pod" (list . (include "tessera.fullname" .)) }}
{{- include "tessera.placement" . | nindent 0 }}
{{- with include "tessera.weightsInit" . }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
containers:
  - name: tessera
    image: {{ include "tessera.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      - node
      - --join=$(LWS_LEADER_ADDRESS):8082
      - --tls-dir=/etc/tessera/nodes
      - --token-file=/etc/tessera/nodes/token
      - --name=node-$(LWS_WORKER_INDEX)
      - --devices={{ if .Values.gpu.count }}{{ include "tessera.lentDevices" . }}{{ else }}cpu:{{ .Values.hosts.cpuRanks }}{{ end }}
      - --join-timeout={{ .Values.hosts.joinTimeoutSeconds }}
    env:
      - {name: HOME, value: /tmp}
      {{- include "tessera.ranksEnv" . | nindent 6 }}
      {{- include "tessera.weightsEnv" . | nindent 6 }}
      {{- with .Values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    resources:
      {{- include "tessera.ranksResources" . | nindent 6 }}
    securityContext:
      {{- include "tessera.ranksSecurity" . | nindent 6 }}
    volumeMounts:
      - {name: nodes, mountPath: /etc/tessera/nodes, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      - {name: shm, mountPath: /dev/shm}
      {{- include "tessera.weightsMount" . | nindent 6 }}
      {{- include "tessera.extraMounts" . | nindent 6 }}
volumes:  # mode 288 is 0440
  {{- include "tessera.nodesVolume" . | nindent 2 }}
  {{- include "tessera.scratchVolumes" . | nindent 2 }}
  {{- include "tessera.weightsVolume" . | nindent 2 }}
  {{- include "tessera.extraVolumes" . | nindent 2 }}
{{- end -}}
