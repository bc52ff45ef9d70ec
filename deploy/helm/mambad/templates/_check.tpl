{{- /* What can't work is refused before anything is rendered, each with what to do instead. */ -}}

{{- /* Not empty where the model is in the container already: the demo, or a folder. */ -}}
{{- define "mambad.isLocal" -}}
{{- if or (eq .Values.model.name "demo") (hasPrefix "/" .Values.model.name) -}}
yes
{{- end -}}
{{- end -}}

{{- define "mambad.check" -}}
{{- include "mambad.checkNames" . -}}
{{- include "mambad.checkKeys" . -}}
{{- include "mambad.checkFlags" . -}}
{{- include "mambad.checkStorage" . -}}
{{- include "mambad.checkScaling" . -}}
{{- include "mambad.checkMonitoring" . -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is empty: name the Service of the endpoint picker" -}}
{{- end -}}
{{- if and .Values.strategy (eq (toString (get .Values.strategy "type")) "Recreate") (get .Values.strategy "rollingUpdate") -}}
{{- fail "strategy.rollingUpdate has no place beside strategy.type=Recreate: leave it out" -}}
{{- end -}}
{{- end -}}

{{- define "mambad.checkNames" -}}
{{- $name := include "mambad.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%s is no name for a Service (lower-case letters, digits and hyphens, a letter first): set fullnameOverride" $name) -}}
{{- end -}}
{{- range $label, $_ := include "mambad.labels" . | fromYaml -}}
{{- if hasKey (default dict $.Values.podLabels) $label -}}
{{- fail (printf "podLabels holds %s, which the chart sets: choose another label" $label) -}}
{{- end -}}
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
{{- $own := list -}}
{{- range include "mambad.args" . | fromYamlArray -}}
{{- $own = append $own (first (splitList "=" .)) -}}
{{- end -}}
{{- if include "mambad.isGiven" .Values.threads -}}
{{- $own = append $own "--threads" -}}
{{- end -}}
{{- $texts := list -}}
{{- range .Values.env -}}
{{- if hasPrefix "MAMBAD_" .name -}}
{{- $flag := printf "--%s" (trimPrefix "MAMBAD_" .name | lower | replace "_" "-") -}}
{{- if has $flag $own -}}
{{- fail (printf "env holds %s, and other values decide about %s: leave it out" .name $flag) -}}
{{- end -}}
{{- $_ := set $flags $flag (printf "env holds %s" .name) -}}
{{- $texts = append $texts (printf "%s=%s" $flag (default "" .value)) -}}
{{- end -}}
{{- if and (eq .name "HF_TOKEN") $.Values.hfToken.existingSecret -}}
{{- fail "env holds HF_TOKEN, which hfToken.existingSecret sets: keep one" -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- $texts = append $texts . -}}
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
{{- $isProtected := and (hasKey $flags "--protect-metrics") (not (regexMatch "--protect[-_]metrics=(0|false|no|off)( |$)" (join " " $texts | lower))) -}}
{{- if and $isProtected $isScraped -}}
{{- fail "--protect-metrics asks for a key at /metrics, which serviceMonitor, podMonitor and inferencePool read without one: use networkPolicy.from instead" -}}
{{- end -}}
{{- $isNative := regexMatch "--metrics[-_]compat[= ]none" (join " " $texts) -}}
{{- if and $isNative .Values.inferencePool.enabled (ne (toString (get (default dict .Values.podLabels) "llm-d.ai/engine-type")) "mambad") -}}
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
{{- $isOneNode := and $storage.create (not (has "ReadWriteMany" $storage.accessModes)) -}}
{{- $rolling := default dict .Values.strategy -}}
{{- if and $isOneNode (eq (toString $rolling.type) "RollingUpdate") (ne (toString (default dict $rolling.rollingUpdate).maxSurge) "0") -}}
{{- fail "strategy.type=RollingUpdate with storage.create needs rollingUpdate.maxSurge=0 or storage.accessModes=[ReadWriteMany]: the new pod could not attach the claim on a second node" -}}
{{- end -}}
{{- if and $isOneNode (not $isOnePod) -}}
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
{{- if and .Values.pdb.enabled (not (include "mambad.isGiven" .Values.pdb.minAvailable)) (not (include "mambad.isGiven" .Values.pdb.maxUnavailable)) -}}
{{- fail "pdb.enabled needs pdb.minAvailable or pdb.maxUnavailable" -}}
{{- end -}}
{{- end -}}

{{- define "mambad.checkMonitoring" -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled exclude each other: every series would be scraped twice" -}}
{{- end -}}
{{- range $name := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $.Values $name -}}
{{- $interval := int (include "mambad.seconds" $monitor.interval) -}}
{{- if and $monitor.enabled (gt (int (include "mambad.seconds" $monitor.scrapeTimeout)) $interval) -}}
{{- fail (printf "%s.scrapeTimeout is %s and interval %s: shorten the former" $name $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- if and $monitor.enabled $.Values.prometheusRule.enabled (gt $interval 20) -}}
{{- fail (printf "%s.interval is %s, and prometheusRule sees an engine that stands still only with scrapes every 20s or oftener" $name $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}
