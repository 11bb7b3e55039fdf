{{/* What no schema can say: values that do not go together. Each message names the remedy. */}}
{{- define "qguide.checks" -}}
{{- $v := .Values -}}
{{- $managed := dict
  "host" "networkPolicy and service say who reaches the server"
  "port" "service.port is the port that others see"
  "keys_file" "use keys.existingSecret or keys.onDataVolume"
  "insecure" "use insecure, beside settings"
  "redis_url" "use redis.enabled, redis.url or redis.existingSecret"
  "replica" "each pod tells its own name" -}}
{{- range $name, $remedy := $managed -}}
{{- if hasKey $v.settings $name -}}
{{- fail (printf "settings.%s is the chart's to set: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- if not (or $v.keys.existingSecret $v.keys.onDataVolume $v.insecure) -}}
{{- fail "there are no API keys, and others can call: run `qguide keys create NAME --file keys.json` and `kubectl create secret generic qguide-keys --from-file=keys.json`, and set keys.existingSecret=qguide-keys; or set keys.onDataVolume=true with persistence.data.enabled=true; or, if everyone may call, insecure=true" -}}
{{- end -}}
{{- if and $v.keys.existingSecret $v.keys.onDataVolume -}}
{{- fail "keys.existingSecret and keys.onDataVolume both name the keys' file: set one" -}}
{{- end -}}
{{- if and $v.insecure (or $v.keys.existingSecret $v.keys.onDataVolume) -}}
{{- fail "insecure=true means no keys, but keys has some: set insecure=false, or keep the keys out" -}}
{{- end -}}
{{- if and $v.settings.admin (not (or $v.keys.existingSecret $v.keys.onDataVolume)) -}}
{{- fail "settings.admin needs keys, as its routes ask for an admin's: set keys.existingSecret or keys.onDataVolume" -}}
{{- end -}}
{{- if and $v.keys.onDataVolume (not $v.persistence.data.enabled) -}}
{{- fail "keys.onDataVolume keeps the keys in /data, which ends with its pod: set persistence.data.enabled=true" -}}
{{- end -}}
{{- if or $v.autoscaling.enabled (gt (int $v.replicaCount) 1) -}}
{{- range $name := splitList " " (include "qguide.unshared" .) | compact -}}
{{- fail (printf "several replicas share /%[1]s, which this volume allows on one node alone: set persistence.%[1]s.accessModes={ReadWriteMany} and a storageClass that has it, or one replica" $name) -}}
{{- end -}}
{{- end -}}
{{- with $v.persistence.models -}}
{{- if and .enabled (not .existingClaim) (or .readOnly (not (without .accessModes "ReadOnlyMany"))) -}}
{{- fail "persistence.models would make an empty volume that nobody can fill: name one with checkpoints, persistence.models.existingClaim=NAME, or set persistence.models.readOnly=false and persistence.models.accessModes={ReadWriteMany}" -}}
{{- end -}}
{{- end -}}
{{- if gt (len (compact (list (ternary "x" "" $v.redis.enabled) $v.redis.url $v.redis.existingSecret))) 1 -}}
{{- fail "redis.enabled, redis.url and redis.existingSecret each name a Redis: set one" -}}
{{- end -}}
{{- if contains "@" $v.redis.url -}}
{{- fail "redis.url has a password, which would stand in the Deployment for all to read: put the URL in a Secret and set redis.existingSecret" -}}
{{- end -}}
{{- if and $v.vllm.enabled (hasKey (default dict $v.settings.upstreams) "vllm") -}}
{{- fail "settings.upstreams has a server called vllm, and vllm.enabled brings one: rename it, or set vllm.enabled=false" -}}
{{- end -}}
{{- if and $v.vllm.enabled $v.settings.vllm -}}
{{- fail "settings.vllm starts a vLLM in the server's pod, and vllm.enabled brings one beside it, both the upstream vllm: leave settings.vllm out and set vllm.model, or set vllm.enabled=false" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not (or $v.insecure $v.settings.public_metrics $v.metrics.serviceMonitor.keySecret.name)) -}}
{{- fail "Prometheus has no key for /metrics: set metrics.serviceMonitor.keySecret.name, or settings.public_metrics=true" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.enabled needs ingress.hosts: [{host: NAME, paths: [{path: /, pathType: Prefix}]}]" -}}
{{- end -}}
{{- end -}}
