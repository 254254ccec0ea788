{{- define "ferry.labels" -}}
app.kubernetes.io/name: ferry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ferry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The command line that both containers begin with. */}}
{{- define "ferry.command" -}}
- /usr/bin/ferry
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "ferry.environment" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- define "ferry.mounts" -}}
- name: kube-proxy
  mountPath: /var/lib/kube-proxy
- name: run
  mountPath: /run/ferry
- name: xtables-lock
  mountPath: /run/xtables.lock
- name: lib-modules
  mountPath: /lib/modules
  readOnly: true
{{- end }}

{{- define "ferry.config" -}}
{{- $config := dict
  "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
  "kind" "KubeProxyConfiguration"
  "clientConnection" (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf")
  "clusterCIDR" .Values.clusterCIDR
  "oomScoreAdj" -997
  "mode" .Values.mode
-}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end }}
