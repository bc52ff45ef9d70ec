{{- /* Names, labels, and what is computed: the grace period, the update, threads, arguments and environment. */ -}}

{{- /* At most 46 characters: a pod adds two hashes, and 63 is the end. */ -}}
{{- define "mambad.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "mambad.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mambad.labels" -}}
{{ include "mambad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "mambad.metadata" -}}
name: {{ include "mambad.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "mambad.labels" . | nindent 2 }}
{{- end -}}

{{- define "mambad.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* A number from a values file is a float64, which would be written as 1.048576e+06. */ -}}
{{- define "mambad.plain" -}}
{{- if kindIs "float64" . -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- /* The secret with the keys of clients; empty where nobody needs one. */ -}}
{{- define "mambad.keySecret" -}}
{{- if .Values.apiKey.value -}}
{{- include "mambad.fullname" . -}}-api-key
{{- else -}}
{{- .Values.apiKey.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "mambad.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "mambad.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Seconds that a pod is given to end; fails where the user's own number is too small. */ -}}
{{- define "mambad.gracePeriod" -}}
{{- $drain := .Values.drain -}}
{{- $needed := add $drain.preStopSeconds $drain.graceSeconds $drain.shutdownSeconds 10 -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if and (ne (toString $given) "") (lt (int $given) (int $needed)) -}}
{{- fail (printf "terminationGracePeriodSeconds is %v, and drain.preStopSeconds + graceSeconds + shutdownSeconds + 10 are %d: leave it empty, or shorten drain" $given (int $needed)) -}}
{{- end -}}
{{- ternary $needed (int $given) (eq (toString $given) "") -}}
{{- end -}}

{{- /* How pods are replaced. A claim that one node at a time can attach would hold the new pod up for ever. */ -}}
{{- define "mambad.strategy" -}}
{{- if .Values.strategy -}}
{{- toYaml .Values.strategy -}}
{{- else if and .Values.storage.create (not (has "ReadWriteMany" .Values.storage.accessModes)) -}}
type: Recreate
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{- /* The limit of CPUs, rounded down, at most 16: what mambad makes of the cgroup where it can read it. */ -}}
{{- define "mambad.threads" -}}
{{- $cpu := toString (default "" (get (default dict .Values.resources.limits) "cpu")) -}}
{{- if hasSuffix "m" $cpu -}}
{{- max 1 (min 16 (div (int (trimSuffix "m" $cpu)) 1000)) -}}
{{- else if $cpu -}}
{{- max 1 (min 16 (int (floor (float64 $cpu)))) -}}
{{- end -}}
{{- end -}}

{{- define "mambad.env" -}}
{{- $given := list -}}
{{- range .Values.env -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- if ne (toString .Values.threads) "" }}
- {name: MAMBAD_THREADS, value: {{ include "mambad.plain" .Values.threads | quote }}}
{{- else if and (include "mambad.threads" .) (not (has "OMP_NUM_THREADS" $given)) (not (has "MAMBAD_THREADS" $given)) }}
- {name: OMP_NUM_THREADS, value: {{ include "mambad.threads" . | quote }}}
{{- end }}
{{- if .Values.hfToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .Values.hfToken.existingSecret }}, key: {{ .Values.hfToken.key }}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What `mambad` is called with. */ -}}
{{- define "mambad.args" -}}
{{- $model := .Values.model -}}
- serve
- {{ $model.name | quote }}
- --host=0.0.0.0
- --port=8000
- --drain-grace={{ include "mambad.plain" .Values.drain.graceSeconds }}
- --shutdown-timeout={{ include "mambad.plain" .Values.drain.shutdownSeconds }}
- --log-format=json
{{- range $flag, $value := dict "served-model-name" $model.servedName "revision" $model.revision "dtype" $model.dtype "quantization" $model.quantization "mamba-ssm-cache-dtype" $model.stateDtype "max-model-len" $model.maxModelLen "max-num-seqs" $model.maxNumSeqs "num-state-slots" $model.numStateSlots "kv-cache-memory-bytes" $model.kvCacheMemory "device" $model.device }}
{{- if ne (toString $value) "" }}
- {{ printf "--%s=%s" $flag (include "mambad.plain" $value) | quote }}
{{- end }}
{{- end }}
{{- if include "mambad.keySecret" . }}
- --api-key-file=/etc/mambad/api-key/keys
{{- end }}
{{- if .Values.adminApiKey.existingSecret }}
- --admin-api-key-file=/etc/mambad/admin-api-key/keys
{{- end }}
{{- if or .Values.storage.create (and .Values.storage.existingClaim (not .Values.storage.readOnly)) }}
- --download-dir={{ .Values.storage.mountPath }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
