{{/* What things are called, and the labels that find them. */}}

{{- define "qguide.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* With -redis, a dash and ten more it is a label of the StatefulSet's pods: 63 characters at most. */}}
{{- define "qguide.fullname" -}}
{{- $name := include "qguide.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{/*
Of a component: (list $ "server"). Pods have these alone: a label that changes with the chart's version
would start vLLM and Redis anew with each.
*/}}
{{- define "qguide.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "qguide.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "qguide.labels" -}}
{{- $root := first . -}}
{{ include "qguide.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "qguide.image" -}}
{{- printf "%s:%s" .Values.image.repository (default (ternary "cuda" "cpu" .Values.gpu.enabled) .Values.image.tag) -}}
{{- end -}}

{{/* The name of a volume claim: (list $ "data"). */}}
{{- define "qguide.claim" -}}
{{- $root := first . -}}
{{- default (printf "%s-%s" (include "qguide.fullname" $root) (last .)) (index $root.Values.persistence (last .)).existingClaim -}}
{{- end -}}

{{/* The volumes, as words, that pods on several nodes cannot have at once. */}}
{{- define "qguide.unshared" -}}
{{- range $name, $volume := .Values.persistence -}}
{{- with $volume -}}
{{- if and .enabled (not (has "ReadWriteMany" .accessModes)) (not (and .readOnly (has "ReadOnlyMany" .accessModes))) }} {{ $name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The limits of a container with GPUs or none: (dict "resources" … "gpu" … "enabled" …). */}}
{{- define "qguide.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .enabled -}}
{{- $_ := set $resources "limits" (set (default dict $resources.limits) .gpu.resource (int64 .gpu.count)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
