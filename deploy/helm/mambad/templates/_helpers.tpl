{{- /* Names, labels, and what has to be computed or checked before anything is rendered. */ -}}

{{- define "mambad.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
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

{{- define "mambad.check" -}}
{{- $key := .Values.apiKey -}}
{{- if and (not $key.existingSecret) (not $key.none) -}}
{{- fail "choose who may use the server: apiKey.existingSecret names a secret with keys, apiKey.none=true lets in everybody who can reach it" -}}
{{- end -}}
{{- if and $key.existingSecret $key.none -}}
{{- fail "apiKey.existingSecret and apiKey.none=true exclude each other" -}}
{{- end -}}
{{- if and .Values.hpa.enabled .Values.keda.enabled -}}
{{- fail "hpa.enabled and keda.enabled exclude each other: KEDA makes an HPA of its own" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled exclude each other: every series would be scraped twice" -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--?(host|port|uds|drain[-_]grace|shutdown[-_]timeout|download[-_]dir|api[-_]key|admin[-_]api[-_]key)" . -}}
{{- fail (printf "extraArgs holds %s, which other values decide: see drain, service, storage, apiKey and adminApiKey" .) -}}
{{- end -}}
{{- end -}}
{{- $hasClaim := or .Values.storage.create .Values.storage.existingClaim -}}
{{- $isLocal := or (eq .Values.model.name "demo") (hasPrefix "/" .Values.model.name) -}}
{{- if not (or $isLocal $hasClaim .Values.storage.ephemeral) -}}
{{- fail (printf "model.name %s is fetched from a hub and there is no claim to keep it: set storage.create or storage.existingClaim, or storage.ephemeral=true and a tmpSize that holds it" .Values.model.name) -}}
{{- end -}}
{{- $isOnePod := and (le (int .Values.replicaCount) 1) (not .Values.hpa.enabled) (not .Values.keda.enabled) -}}
{{- if and .Values.storage.create (not (has "ReadWriteMany" .Values.storage.accessModes)) (not $isOnePod) -}}
{{- fail "storage.create with more than one replica needs storage.accessModes=[ReadWriteMany]: others can't be attached on a second node" -}}
{{- end -}}
{{- if and .Values.storage.create .Values.storage.existingClaim -}}
{{- fail "storage.create and storage.existingClaim exclude each other" -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is empty: name the Service of the endpoint picker" -}}
{{- end -}}
{{- if and .Values.pdb.enabled (eq (toString .Values.pdb.minAvailable) "") (eq (toString .Values.pdb.maxUnavailable) "") -}}
{{- fail "pdb.enabled needs pdb.minAvailable or pdb.maxUnavailable" -}}
{{- end -}}
{{- end -}}

{{- /* What `mambad` is called with. */ -}}
{{- define "mambad.args" -}}
{{- $model := .Values.model -}}
- serve
- {{ $model.name | quote }}
- --host=0.0.0.0
- --port=8000
- --drain-grace={{ .Values.drain.graceSeconds }}
- --shutdown-timeout={{ .Values.drain.shutdownSeconds }}
- --log-format=json
{{- range $flag, $value := dict "served-model-name" $model.servedName "revision" $model.revision "dtype" $model.dtype "quantization" $model.quantization "mamba-ssm-cache-dtype" $model.stateDtype "max-model-len" $model.maxModelLen "max-num-seqs" $model.maxNumSeqs "num-state-slots" $model.numStateSlots "kv-cache-memory-bytes" $model.kvCacheMemory "device" $model.device }}
{{- if ne (toString $value) "" }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- if .Values.apiKey.existingSecret }}
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
