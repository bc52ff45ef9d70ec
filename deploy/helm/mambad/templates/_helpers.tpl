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
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "mambad.labels" -}}
{{ include "mambad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "mambad.metadata" -}}
name: {{ include "mambad.fullname" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "mambad.labels" . | nindent 2 }}
{{- end -}}

{{- define "mambad.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* Not empty where a value was given: an empty text and a null mean the same. */ -}}
{{- define "mambad.isGiven" -}}
{{- if not (or (kindIs "invalid" .) (eq (toString .) "")) -}}
yes
{{- end -}}
{{- end -}}

{{- /* Seconds of a duration such as 1m30s; parts of a second don't count. */ -}}
{{- define "mambad.seconds" -}}
{{- $hours := trimSuffix "h" (regexFind "[0-9]+h" .) -}}
{{- $minutes := trimSuffix "m" (regexFind "[0-9]+m([0-9]|$)" . | regexFind "[0-9]+m") -}}
{{- $seconds := trimSuffix "s" (regexFind "[0-9]+s" .) -}}
{{- add (mul 3600 (int $hours)) (mul 60 (int $minutes)) (int $seconds) -}}
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
{{- if and (include "mambad.isGiven" $given) (lt (int $given) (int $needed)) -}}
{{- fail (printf "terminationGracePeriodSeconds is %v, and drain.preStopSeconds + graceSeconds + shutdownSeconds + 10 are %d: leave it empty, or shorten drain" $given (int $needed)) -}}
{{- end -}}
{{- ternary (int $given) $needed (eq "yes" (include "mambad.isGiven" $given)) -}}
{{- end -}}

{{- /* Seconds after which an update has failed: the old pod's end, ten minutes to fetch the image, and loading. */ -}}
{{- define "mambad.progressDeadline" -}}
{{- $probe := .Values.probes.startup -}}
{{- $loading := add (default 0 $probe.initialDelaySeconds) (mul (default 10 $probe.periodSeconds) (default 3 $probe.failureThreshold)) -}}
{{- add $loading (include "mambad.gracePeriod" .) 600 -}}
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
{{- $cpu := toString (default "" (get (default dict (default dict .Values.resources).limits) "cpu")) -}}
{{- if hasSuffix "m" $cpu -}}
{{- max 1 (min 16 (div (int (trimSuffix "m" $cpu)) 1000)) -}}
{{- else if $cpu -}}
{{- max 1 (min 16 (int (floor (float64 $cpu)))) -}}
{{- end -}}
{{- end -}}

{{- /* What a pod asks for: of processors and memory, without a word, all that it may use. */ -}}
{{- define "mambad.resources" -}}
{{- $resources := default dict .Values.resources -}}
{{- $limits := default dict $resources.limits -}}
{{- $requests := merge dict (default dict $resources.requests) (pick $limits "cpu" "memory") -}}
{{- toYaml (merge (dict "requests" $requests) $resources) -}}
{{- end -}}

{{- define "mambad.env" -}}
{{- $given := list -}}
{{- range .Values.env -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- if include "mambad.isGiven" .Values.threads }}
- {name: MAMBAD_THREADS, value: {{ include "mambad.plain" .Values.threads | quote }}}
{{- else if and (include "mambad.threads" .) (not (has "OMP_NUM_THREADS" $given)) (not (has "MAMBAD_THREADS" $given)) }}
- {name: OMP_NUM_THREADS, value: {{ include "mambad.threads" . | quote }}}
{{- end }}
{{- if .Values.hfToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .Values.hfToken.existingSecret | quote }}, key: {{ .Values.hfToken.key | quote }}}
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
- {{ printf "--host=%s" .Values.host | quote }}
- --port=8000
- --drain-grace={{ include "mambad.plain" .Values.drain.graceSeconds }}
- --shutdown-timeout={{ include "mambad.plain" .Values.drain.shutdownSeconds }}
- --log-format=json
{{- range $flag, $value := dict "served-model-name" $model.servedName "revision" $model.revision "dtype" $model.dtype "quantization" $model.quantization "mamba-ssm-cache-dtype" $model.stateDtype "max-model-len" $model.maxModelLen "max-num-seqs" $model.maxNumSeqs "num-state-slots" $model.numStateSlots "kv-cache-memory-bytes" $model.kvCacheMemory "device" $model.device }}
{{- if include "mambad.isGiven" $value }}
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
- {{ printf "--download-dir=%s" .Values.storage.mountPath | quote }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
