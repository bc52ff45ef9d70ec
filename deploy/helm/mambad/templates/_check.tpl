{{- /* What can't work is refused before anything is rendered, each with what to do instead. */ -}}

{{- /* Not empty where the model is in the container already: the demo, or a folder. */ -}}
{{- define "mambad.isLocal" -}}
{{- if or (eq .Values.model.name "demo") (hasPrefix "/" .Values.model.name) -}}
yes
{{- end -}}
{{- end -}}

{{- define "mambad.check" -}}
{{- include "mambad.checkKeys" . -}}
{{- include "mambad.checkFlags" . -}}
{{- include "mambad.checkStorage" . -}}
{{- include "mambad.checkScaling" . -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is empty: name the Service of the endpoint picker" -}}
{{- end -}}
{{- if and .Values.strategy (eq (toString (get .Values.strategy "type")) "Recreate") (get .Values.strategy "rollingUpdate") -}}
{{- fail "strategy.rollingUpdate has no place beside strategy.type=Recreate: leave it out" -}}
{{- end -}}
{{- end -}}

{{- define "mambad.checkKeys" -}}
{{- $key := .Values.apiKey -}}
{{- $chosen := list -}}
{{- if $key.existingSecret -}}{{- $chosen = append $chosen "apiKey.existingSecret" -}}{{- end -}}
{{- if $key.value -}}{{- $chosen = append $chosen "apiKey.value" -}}{{- end -}}
{{- if $key.none -}}{{- $chosen = append $chosen "apiKey.none=true" -}}{{- end -}}
{{- if not $chosen -}}
{{- fail "choose who may use the server: apiKey.existingSecret names a secret with keys, apiKey.value is a key, apiKey.none=true lets in everybody who can reach it" -}}
{{- end -}}
{{- if gt (len $chosen) 1 -}}
{{- fail (printf "%s exclude each other: keep one" (join " and " $chosen)) -}}
{{- end -}}
{{- end -}}

{{- /* extraArgs, and variables that mean a flag: the chart's own flags would win over those unseen. */ -}}
{{- define "mambad.checkFlags" -}}
{{- $flags := dict -}}
{{- range .Values.env -}}
{{- if hasPrefix "MAMBAD_" .name -}}
{{- $_ := set $flags (printf "--%s" (trimPrefix "MAMBAD_" .name | lower | replace "_" "-")) (printf "env holds %s" .name) -}}
{{- end -}}
{{- if and (eq .name "HF_TOKEN") $.Values.hfToken.existingSecret -}}
{{- fail "env holds HF_TOKEN, which hfToken.existingSecret sets: keep one" -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if hasPrefix "-" . -}}
{{- $_ := set $flags (first (splitList "=" .) | replace "_" "-") (printf "extraArgs holds %s" .) -}}
{{- end -}}
{{- end -}}
{{- range $flag, $where := $flags -}}
{{- if regexMatch "^--(model|host|port|uds|drain-grace|shutdown-timeout|download-dir|api-key|api-key-file|admin-api-key|admin-api-key-file)$" $flag -}}
{{- fail (printf "%s, which other values decide: see model.name, service, drain, storage, apiKey and adminApiKey" $where) -}}
{{- end -}}
{{- if hasPrefix "--ssl-" $flag -}}
{{- fail (printf "%s, and probes, monitors and routes ask over http: end TLS at the ingress, the gateway or a mesh" $where) -}}
{{- end -}}
{{- end -}}
{{- $isScraped := or .Values.serviceMonitor.enabled .Values.podMonitor.enabled .Values.inferencePool.enabled -}}
{{- if and (hasKey $flags "--protect-metrics") $isScraped -}}
{{- fail "--protect-metrics asks for a key at /metrics, which serviceMonitor, podMonitor and inferencePool read without one: use networkPolicy.from instead" -}}
{{- end -}}
{{- $isNative := regexMatch "--metrics[-_]compat[= ]none" (join " " .Values.extraArgs) -}}
{{- if and $isNative .Values.inferencePool.enabled (ne (toString (get .Values.podLabels "llm-d.ai/engine-type")) "mambad") -}}
{{- fail "--metrics-compat none hides the series that a picker reads from its engine vllm: set podLabels to llm-d.ai/engine-type: mambad" -}}
{{- end -}}
{{- end -}}

{{- define "mambad.checkStorage" -}}
{{- $storage := .Values.storage -}}
{{- if and $storage.create $storage.existingClaim -}}
{{- fail "storage.create and storage.existingClaim exclude each other" -}}
{{- end -}}
{{- $canKeep := or $storage.create (and $storage.existingClaim (not $storage.readOnly)) -}}
{{- if not (or (include "mambad.isLocal" .) $canKeep $storage.ephemeral) -}}
{{- fail (printf "model.name %s is fetched from a hub and there is no claim to keep it: set storage.create, or storage.existingClaim and storage.readOnly=false, or storage.ephemeral=true and a tmpSize that holds it" .Values.model.name) -}}
{{- end -}}
{{- $isOnePod := and (le (int .Values.replicaCount) 1) (not .Values.hpa.enabled) (not .Values.keda.enabled) -}}
{{- if and $storage.create (not (has "ReadWriteMany" $storage.accessModes)) (not $isOnePod) -}}
{{- fail "storage.create with more than one replica needs storage.accessModes=[ReadWriteMany]: others can't be attached on a second node" -}}
{{- end -}}
{{- end -}}

{{- define "mambad.checkScaling" -}}
{{- if and .Values.hpa.enabled .Values.keda.enabled -}}
{{- fail "hpa.enabled and keda.enabled exclude each other: KEDA makes an HPA of its own" -}}
{{- end -}}
{{- range $name := list "hpa" "keda" -}}
{{- $scaler := get $.Values $name -}}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- fail (printf "%s.minReplicas is %v and maxReplicas %v: raise the latter" $name $scaler.minReplicas $scaler.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled exclude each other: every series would be scraped twice" -}}
{{- end -}}
{{- if and .Values.pdb.enabled (eq (toString .Values.pdb.minAvailable) "") (eq (toString .Values.pdb.maxUnavailable) "") -}}
{{- fail "pdb.enabled needs pdb.minAvailable or pdb.maxUnavailable" -}}
{{- end -}}
{{- end -}}
