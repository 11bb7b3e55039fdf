{{/* Combinations of values that the schema cannot check. Each message names the remedy. */}}
{{- define "qguide.checks" -}}
{{- $v := .Values -}}
{{- $managed := dict
  "host" "use networkPolicy and service to control access"
  "port" "use service.port"
  "keys_file" "use keys.existingSecret or keys.onDataVolume"
  "insecure" "use the top-level value insecure"
  "redis_url" "use redis.enabled, redis.url or redis.existingSecret"
  "replica" "each pod uses its own name" -}}
{{- range $name, $remedy := $managed -}}
{{- if hasKey $v.settings $name -}}
{{- fail (printf "settings.%s is managed by the chart: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- if not (or $v.keys.existingSecret $v.keys.onDataVolume $v.insecure) -}}
{{- fail "no API keys are configured: run `qguide keys create NAME --file keys.json` and `kubectl create secret generic qguide-keys --from-file=keys.json`, and set keys.existingSecret=qguide-keys; or set keys.onDataVolume=true with persistence.data.enabled=true; or, if everyone may call, insecure=true" -}}
{{- end -}}
{{- if and $v.keys.existingSecret $v.keys.onDataVolume -}}
{{- fail "keys.existingSecret and keys.onDataVolume are both set: set only one" -}}
{{- end -}}
{{- if and $v.insecure (or $v.keys.existingSecret $v.keys.onDataVolume) -}}
{{- fail "insecure=true means no API keys, but keys are configured: set insecure=false, or remove keys" -}}
{{- end -}}
{{- if and $v.settings.admin (not (or $v.keys.existingSecret $v.keys.onDataVolume)) -}}
{{- fail "settings.admin needs API keys, because its routes require an admin key: set keys.existingSecret or keys.onDataVolume" -}}
{{- end -}}
{{- if and $v.keys.onDataVolume (not $v.persistence.data.enabled) -}}
{{- fail "keys.onDataVolume keeps the keys in /data, which is lost with its pod: set persistence.data.enabled=true" -}}
{{- end -}}
{{- if or $v.autoscaling.enabled (gt (int $v.replicaCount) 1) -}}
{{- range $name := splitList " " (include "qguide.unshared" .) | compact -}}
{{- fail (printf "several replicas share /%[1]s, but its volume can be mounted on one node only: set persistence.%[1]s.accessModes={ReadWriteMany} and a storageClass that supports it, or use one replica" $name) -}}
{{- end -}}
{{- end -}}
{{- with $v.persistence.models -}}
{{- if and .enabled (not .existingClaim) (or .readOnly (not (without .accessModes "ReadOnlyMany"))) -}}
{{- fail "persistence.models would create an empty read-only volume: set persistence.models.existingClaim=NAME for a claim with checkpoints, or persistence.models.readOnly=false and persistence.models.accessModes={ReadWriteMany}" -}}
{{- end -}}
{{- end -}}
{{- if gt (len (compact (list (ternary "x" "" $v.redis.enabled) $v.redis.url $v.redis.existingSecret))) 1 -}}
{{- fail "more than one of redis.enabled, redis.url and redis.existingSecret is set: set only one" -}}
{{- end -}}
{{- if contains "@" $v.redis.url -}}
{{- fail "redis.url has a password, which would be readable in the Deployment: put the URL in a Secret and set redis.existingSecret" -}}
{{- end -}}
{{- if and $v.vllm.enabled (hasKey (default dict $v.settings.upstreams) "vllm") -}}
{{- fail "settings.upstreams has an entry vllm, the name that vllm.enabled uses: rename it, or set vllm.enabled=false" -}}
{{- end -}}
{{- if and $v.vllm.enabled $v.settings.vllm -}}
{{- fail "settings.vllm starts vLLM in the server's pod and vllm.enabled starts it in another, both as the upstream vllm: remove settings.vllm and set vllm.model, or set vllm.enabled=false" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not (or $v.insecure $v.settings.public_metrics $v.metrics.serviceMonitor.keySecret.name)) -}}
{{- fail "Prometheus has no key for /metrics: set metrics.serviceMonitor.keySecret.name to a Secret with a key of `qguide keys create prometheus --metrics`, or settings.public_metrics=true" -}}
{{- end -}}
{{- with $v.metrics.vllmMonitor -}}
{{- if and .enabled (not $v.vllm.enabled) -}}
{{- fail "metrics.vllmMonitor scrapes the chart's vLLM, and there is none: set vllm.enabled=true, or metrics.vllmMonitor.enabled=false" -}}
{{- end -}}
{{- if and .enabled (not .from) -}}
{{- fail "only the server's pods may reach vLLM: name the pods of Prometheus in metrics.vllmMonitor.from, as peers of a NetworkPolicy" -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.enabled needs ingress.hosts: [{host: NAME, paths: [{path: /, pathType: Prefix}]}]" -}}
{{- end -}}
{{- end -}}
