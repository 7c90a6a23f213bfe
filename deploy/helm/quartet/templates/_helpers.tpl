{{- define "quartet.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "quartet.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "quartet.labels" -}}
{{ include "quartet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "quartet.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "quartet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "quartet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "quartet.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The volume of a Secret with certificates, under the names that the settings have. */}}
{{- define "quartet.tlsVolume" -}}
- name: tls
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      - {key: {{ .root.Values.tls.certKey }}, path: tls.pem}
      - {key: {{ .root.Values.tls.keyKey }}, path: tls.key}
      - {key: {{ .root.Values.tls.caKey }}, path: ca.pem}
{{- end -}}

{{- define "quartet.keyVolume" -}}
- name: key
  secret:
    secretName: {{ .Values.installationKey.secretName }}
    defaultMode: 0440
    items: [{key: key, path: key}]
{{- end -}}

{{- define "quartet.archiveVolume" -}}
- name: archive
  secret:
    secretName: {{ .Values.archive.secretName }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.archive.credentialsKey }}, path: credentials}
      {{- if .Values.archive.caKey }}
      - {key: {{ .Values.archive.caKey }}, path: ca.pem}
      {{- end }}
{{- end -}}

{{- define "quartet.check" -}}
{{- if and .Values.archive.url (not .Values.archive.secretName) }}{{ fail "archive.secretName is empty: the bucket of archive.url needs credentials" }}{{ end }}
{{- if and .Values.archive.secretName (not .Values.archive.url) }}{{ fail "archive.url is empty: archive.secretName is for a bucket" }}{{ end }}
{{- if and .Values.archive.claimName .Values.archive.url }}{{ fail "archive.url and archive.claimName exclude each other: closed segments go to one place" }}{{ end }}
{{- if and .Values.archive.claimName (ne .Values.mode "split") }}{{ fail "archive.claimName is for mode split: in mode single closed segments are in the volume" }}{{ end }}
{{- if eq .Values.mode "split" }}
{{- if not .Values.nats.url }}{{ fail "nats.url is empty: mode split needs a NATS cluster, as tls://nats-1:4222,tls://nats-2:4222" }}{{ end }}
{{- if not .Values.tls.enabled }}{{ fail "tls.enabled is false: services of mode split show each other certificates" }}{{ end }}
{{- if not .Values.installationKey.secretName }}{{ fail "installationKey.secretName is empty: the services of mode split share one key" }}{{ end }}
{{- if and (gt (int .Values.split.services.work.replicas) 1) (not (has "ReadWriteMany" .Values.split.homes.accessModes)) }}{{ fail "split.services.work.replicas is more than 1: split.homes.accessModes must have ReadWriteMany, as the instances share the agents' homes" }}{{ end }}
{{- if not (or .Values.archive.url .Values.archive.claimName (hasKey .Values.settings "erase-after")) }}{{ fail "archive.url and archive.claimName are empty: mode split keeps closed segments in a bucket or on a volume of all pods, or with settings.erase-after 0 everything stays in NATS" }}{{ end }}
{{- end }}
{{- end -}}
