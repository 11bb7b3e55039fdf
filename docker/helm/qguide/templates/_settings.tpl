{{/* From values to the server's environment. */}}

{{/* A setting as its variable's text. Kubernetes reads $(NAME) as another variable, and $$ as $. */}}
{{- define "qguide.text" -}}
{{- $text := ternary . (toRawJson .) (kindIs "string" .) -}}
{{- $text | replace "$" "$$" -}}
{{- end -}}

{{/*
The servers of settings.upstreams, vllm_trunks or classifiers: their variable, and before it one for each
key, which Kubernetes puts in where the text has $(NAME).
*/}}
{{- define "qguide.servers" -}}
{{- $setting := .setting -}}
{{- $servers := deepCopy .servers -}}
{{- $n := 0 -}}
{{- range $name, $server := $servers -}}
{{- with $server.api_key }}
{{- fail (printf "settings.%s.%s.api_key would stand in the Deployment for all to read: put the key in a Secret and name it, api_key_secret: {name: SECRET, key: KEY}" $setting $name) -}}
{{- end -}}
{{- with $server.api_key_secret -}}
{{- $variable := printf "%s_KEY_%d" (upper $setting) $n }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef: {{ toRawJson . }}
{{- $_ := set $server "api_key" (printf "$(%s)" $variable) -}}
{{- $_ := unset $server "api_key_secret" -}}
{{- $n = add1 $n -}}
{{- end -}}
{{- end }}
- name: QGUIDE_{{ upper $setting }}
  value: {{ include "qguide.text" $servers | replace (printf "$$(%s_KEY_" (upper $setting)) (printf "$(%s_KEY_" (upper $setting)) | toRawJson }}
{{- end -}}

{{- define "qguide.environment" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.gpu.enabled -}}
{{- $settings = merge $settings (dict "device" "cuda" "dtype" "bfloat16") -}}
{{- end -}}
{{- if .Values.persistence.models.enabled -}}
{{- $settings = merge $settings (dict "models_dir" "/models") -}}
{{- end -}}
{{- if .Values.vllm.enabled -}}
{{- $url := printf "http://%s-vllm:8000/v1" (include "qguide.fullname" .) -}}
{{- $settings = merge $settings (dict "policy" "vllm" "upstreams" (dict "vllm" (dict "url" $url "model" "policy"))) -}}
{{- end -}}
{{- /* Without API keys the server accepts only its own names in the Host header. */ -}}
{{- if and .Values.insecure (not (hasKey $settings "trusted_hosts")) -}}
{{- $name := include "qguide.fullname" . -}}
{{- $local := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := list $name $local (printf "%s.svc" $local) (printf "%s.svc.cluster.local" $local) -}}
{{- if .Values.ingress.enabled -}}
{{- range .Values.ingress.hosts }}{{ $hosts = append $hosts .host }}{{ end -}}
{{- end -}}
{{- $settings = merge $settings (dict "trusted_hosts" $hosts) -}}
{{- end -}}
- name: QGUIDE_HOST
  value: "0.0.0.0"
- name: QGUIDE_PORT
  value: "8000"
- name: QGUIDE_REPLICA
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
{{- if .Values.keys.existingSecret }}
- name: QGUIDE_KEYS_FILE
  value: {{ printf "/etc/qguide/keys/%s" .Values.keys.secretKey | quote }}
{{- else if .Values.keys.onDataVolume }}
- name: QGUIDE_KEYS_FILE
  value: /data/keys.json
{{- else }}
- name: QGUIDE_INSECURE
  value: "true"
{{- end }}
{{- if .Values.redis.enabled }}
- name: QGUIDE_REDIS_URL
  value: redis://{{ include "qguide.fullname" . }}-redis:6379/0
{{- else if .Values.redis.url }}
- name: QGUIDE_REDIS_URL
  value: {{ .Values.redis.url | quote }}
{{- else if .Values.redis.existingSecret }}
- name: QGUIDE_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.existingSecret }}, key: {{ .Values.redis.secretKey }}}
{{- end }}
{{- if not (hasKey $settings "threads") }}
- name: QGUIDE_THREADS
  valueFrom:
    resourceFieldRef: {containerName: server, resource: requests.cpu, divisor: "1"}
{{- end }}
{{- range $name, $value := $settings }}
{{- if has $name (list "upstreams" "vllm_trunks" "classifiers") }}
{{- include "qguide.servers" (dict "setting" $name "servers" $value) }}
{{- else }}
- name: QGUIDE_{{ upper $name }}
  value: {{ include "qguide.text" $value | toRawJson }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
