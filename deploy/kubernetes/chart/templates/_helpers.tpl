{{/* What the chart is called: memgate, unless a value says otherwise */}}
{{- define "memgate.chartName" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* memgate, or RELEASE-memgate; short enough for what is appended to it */}}
{{- define "memgate.name" -}}
{{- $name := include "memgate.chartName" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes about a component's pods: (list $ "api") */}}
{{- define "memgate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "memgate.chartName" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "memgate.labels" -}}
{{- $root := index . 0 -}}
{{ include "memgate.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* Head of an object: (list $ "api" "-suffix") */}}
{{- define "memgate.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "memgate.name" $root }}{{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "memgate.labels" . | nindent 2 }}
{{- end -}}

{{/* Head of an object that has no namespace */}}
{{- define "memgate.clusterMetadata" -}}
{{- $root := index . 0 -}}
name: {{ include "memgate.name" $root }}{{ index . 2 }}
labels:
  {{- include "memgate.labels" . | nindent 2 }}
{{- end -}}

{{/* Head of a pod: (list $ "api") */}}
{{- define "memgate.podMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "memgate.labels" . | nindent 2 }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The values of a component, as JSON: (list $ "api"); empty for our jobs */}}
{{- define "memgate.componentValues" -}}
{{- $values := (index . 0).Values -}}
{{- $own := dict "api" $values.api "webhook" $values.admission "controller" $values.controller "valkey" $values.valkey -}}
{{- $own = merge $own (dict "worker-slow" $values.workers.slow "worker-fast" $values.workers.fast "worker" $values.workers) -}}
{{- get $own (index . 1) | default dict | toJson -}}
{{- end -}}

{{/* What all pods have in common: (list $ "api"); where a component has values of its own, those count */}}
{{- define "memgate.pod" -}}
{{- $root := index . 0 -}}
{{- $own := include "memgate.componentValues" . | fromJson -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- if eq (index . 1) "valkey" }}
  # the user of Valkey's own image
  runAsUser: 999
  runAsGroup: 999
  fsGroup: 999
  fsGroupChangePolicy: OnRootMismatch
  {{- else }}
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  {{- end }}
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName | default $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $own.nodeSelector | default $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations | default $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity | default $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Pods of a component on different machines and in different zones, where there are some */}}
{{- define "memgate.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "memgate.selector" $ | nindent 8 }}
  {{- end }}
{{- end -}}

{{- define "memgate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* (list $ "service") */}}
{{- define "memgate.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $name := printf "%s:%s" (get $image (index . 1)) ($image.tag | default $root.Chart.AppVersion) -}}
{{- with get $image.digests (index . 1) -}}
{{- $name = printf "%s@%s" (get $image (index $ 1)) . -}}
{{- end -}}
image: {{ with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end -}}

{{/* A token of the pod's own that lives an hour: only pods that talk to Kubernetes have one */}}
{{- define "memgate.tokenVolume" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end -}}

{{- define "memgate.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{/* The only place that can be written to */}}
{{- define "memgate.tmpVolume" -}}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
{{- end -}}

{{- define "memgate.tmpMount" -}}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{/* Variables that all programs get */}}
{{- define "memgate.env" -}}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Where the queue is; the password comes first, since the URL is made from it */}}
{{- define "memgate.queueEnv" -}}
{{- if .Values.valkey.enabled }}
- name: VALKEY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "memgate.valkeySecret" . }}
      key: password
- name: MEMGATE_REDIS_URL
  value: redis://:$(VALKEY_PASSWORD)@{{ include "memgate.name" . }}-valkey.{{ .Release.Namespace }}.svc:6379/0
{{- else if .Values.valkey.external.existingSecret }}
- name: MEMGATE_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.valkey.external.existingSecret }}
      key: url
{{- else }}
- name: MEMGATE_REDIS_URL
  value: {{ required "valkey.enabled is false: set valkey.external.url or valkey.external.existingSecret" .Values.valkey.external.url | quote }}
{{- end }}
{{- end -}}

{{- define "memgate.valkeySecret" -}}
{{- .Values.valkey.existingSecret | default (printf "%s-valkey" (include "memgate.name" .)) -}}
{{- end -}}

{{- define "memgate.webhookSecret" -}}
{{- if eq .Values.certificates.kind "existing" -}}
{{- required "certificates.kind is existing: set certificates.existingSecret" .Values.certificates.existingSecret -}}
{{- else -}}
{{- include "memgate.name" . }}-webhook-tls
{{- end -}}
{{- end -}}

{{- define "memgate.webhookHost" -}}
{{- include "memgate.name" . }}-webhook.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "memgate.controllerSecret" -}}
{{- .Values.controller.existingSecret | default (printf "%s-controller-key" (include "memgate.name" .)) -}}
{{- end -}}

{{/* Whether anything is ever held; empty if not */}}
{{- define "memgate.holds" -}}
{{- with .Values.admission -}}
{{- $policy := toJson .policy -}}
{{- if or (has "hold" (list .onTimeout .onUncertain)) (contains "\"hold\"" $policy) -}}yes
{{- else if or (contains "\"rehearse\"" $policy) (contains "\"late\":\"reject\"" $policy) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether something may be held: a policy can be written at any time, if it is a resource */}}
{{- define "memgate.mayHold" -}}
{{- if or .Values.admission.policyResources (include "memgate.holds" .) -}}yes{{- end -}}
{{- end -}}

{{/* Whether there is a controller; empty if not */}}
{{- define "memgate.hasController" -}}
{{- if eq .Values.controller.enabled "always" -}}yes
{{- else if eq .Values.controller.enabled "auto" -}}
{{- if and (include "memgate.hasWebhooks" .) (or (include "memgate.mayHold" .) .Values.audit.enabled) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Namespaces that are never asked about */}}
{{- define "memgate.excludedNamespaces" -}}
{{- concat (list .Release.Namespace "kube-system") .Values.admission.excludedNamespaces | uniq | toJson -}}
{{- end -}}

{{- define "memgate.hasWebhooks" -}}
{{- if or .Values.admission.validate .Values.admission.mutate -}}yes{{- end -}}
{{- end -}}

{{/* Whether the webhooks talk to Kubernetes themselves */}}
{{- define "memgate.webhookTalks" -}}
{{- with .Values.admission -}}
{{- if or .configMaps .policyResources .events -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "memgate.hasMatchConditions" -}}
{{- $wanted := toString .Values.admission.matchConditions -}}
{{- /* what nobody described can be rehearsed or refused only if we are asked about it */ -}}
{{- $asksAll := or .Values.rehearsals.enabled (contains "\"undescribed\"" (toJson .Values.admission.policy)) -}}
{{- $isNew := semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $isNew (not $asksAll)) -}}yes{{- end -}}
{{- end -}}

{{- define "memgate.policyMount" -}}
- name: policy
  mountPath: /etc/memgate/policy
  readOnly: true
{{- end -}}

{{/* All of the directory: a single file would not change with the ConfigMap */}}
{{- define "memgate.policyVolume" -}}
- name: policy
  configMap:
    name: {{ include "memgate.name" . }}-policy
{{- end -}}

{{/* What webhooks and controller must agree on */}}
{{- define "memgate.admissionEnv" -}}
{{- with .Values.admission -}}
- name: MEMGATE_ADMISSION_MODE
  value: {{ .mode }}
{{- if .policy }}
- name: MEMGATE_ADMISSION_POLICY
  value: /etc/memgate/policy/policy.json
{{- end }}
- name: MEMGATE_ADMISSION_POLICY_RESOURCES
  value: {{ .policyResources | quote }}
- name: MEMGATE_ADMISSION_ON_TIMEOUT
  value: {{ .onTimeout }}
- name: MEMGATE_ADMISSION_ON_UNCERTAIN
  value: {{ .onUncertain }}
- name: MEMGATE_ADMISSION_WAIT_SECONDS
  value: {{ .waitSeconds | quote }}
- name: MEMGATE_ADMISSION_RELEASERS
  value: {{ join "," .releasers | quote }}
- name: MEMGATE_RIGHT_SIZE
  value: {{ kindIs "slice" .rightSize | ternary (join "," .rightSize) .rightSize | default "none" }}
{{- with .gpus }}
- name: MEMGATE_ADMISSION_GPUS
  value: {{ join "," . }}
{{- end }}
{{- with .paths }}
- name: MEMGATE_ADMISSION_PATHS
  value: {{ toJson . | quote }}
{{- end }}
{{- end }}
{{- if .Values.rehearsals.enabled }}
- name: MEMGATE_REHEARSAL_IMAGE
  value: {{ (include "memgate.image" (list . "worker") | fromYaml).image }}
{{- end }}
{{- end -}}
