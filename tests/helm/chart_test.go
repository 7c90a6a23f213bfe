package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// chartDir is the chart under test.
var chartDir = filepath.Join("..", "..", "deploy", "helm", "quartet")

// The sets of values, each as a user would write it.
var sets = map[string]string{
	"single": ``,
	"single with everything": `
publicUrl: https://quartet.example.com
tls: {enabled: true}
installationKey: {secretName: quartet-key}
settings: {log-level: debug, snapshot-mib: 32}
worker: {enabled: true, replicas: 3, args: ["--pool", "go,slow", "--capacity", "8"]}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
alerts: {enabled: true}
networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8}}], metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
single: {persistence: {storageClassName: fast}}
archive: {url: "s3://journals/prod?endpoint=https://s3.example.com", secretName: quartet-s3, caKey: ca.crt}
imagePullSecrets: [{name: registry}]
nodeSelector: {disk: fast}
tolerations: [{key: quartet, operator: Exists}]
podAnnotations: {team: agents}
`,
	"split": `
mode: split
tls: {enabled: true}
installationKey: {secretName: quartet-key}
nats: {url: "tls://nats-0.nats:4222,tls://nats-1.nats:4222", monitorUrl: "http://nats-0.nats:8222", tlsServerName: nats}
archive: {claimName: quartet-archive}
`,
	"split with everything": `
mode: split
tls: {enabled: true, secretPrefix: q-, certKey: cert, keyKey: key, caKey: ca}
installationKey: {secretName: quartet-key}
nats: {url: "tls://nats:4222", replicas: 5}
split: {services: {work: {replicas: 3, resources: {limits: {memory: 8Gi}}}}, homes: {accessModes: [ReadWriteMany], storageClassName: nfs}}
service: {type: LoadBalancer, annotations: {example.com/lb: internal}}
archive: {url: "s3://journals/prod?region=eu-central-1", secretName: quartet-s3, credentialsKey: aws}
worker: {enabled: true}
serviceMonitor: {enabled: true}
alerts: {enabled: true}
`,
}

// object is one manifest: what all of them have, and its text.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	text []byte
}

// render returns what Helm makes of a set of values.
func render(t *testing.T, values string) ([]object, error) {
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	parsed, err := common.ReadValues([]byte(values))
	require.NoError(t, err)
	all, err := util.ToRenderValues(chart, parsed, common.ReleaseOptions{
		Name: "prod", Namespace: "agents", IsInstall: true, Revision: 1,
	}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), chart, all)
	if err != nil {
		return nil, err
	}
	var out []object
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, part := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
			if strings.TrimSpace(part) == "" {
				continue
			}
			o := object{text: []byte(part)}
			require.NoError(t, yaml.Unmarshal(o.text, &o), "%s:\n%s", name, part)
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b object) int {
		return strings.Compare(a.Kind+a.Metadata.Name, b.Kind+b.Metadata.Name)
	})
	return out, nil
}

// mustRender is render of values that are right.
func mustRender(t *testing.T, values string) []object {
	out, err := render(t, values)
	require.NoError(t, err)
	return out
}

// decode reads a manifest into its type and refuses fields that it does not have.
func decode[T any](t *testing.T, o object) *T {
	out := new(T)
	require.NoError(t, yaml.UnmarshalStrict(o.text, out), "%s %s:\n%s", o.Kind, o.Metadata.Name, o.text)
	return out
}

// one returns the only manifest of a kind and name.
func one(t *testing.T, all []object, kind, name string) object {
	for _, o := range all {
		if o.Kind == kind && o.Metadata.Name == name {
			return o
		}
	}
	require.Fail(t, "not rendered", "%s %s", kind, name)
	return object{}
}

func TestHelmFindsNothing(t *testing.T) {
	for name, text := range sets {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{}
			require.NoError(t, yaml.Unmarshal([]byte(text), &values))
			for _, m := range lint.RunAll(chartDir, values, "agents").Messages {
				require.Fail(t, "lint", "%s", m.Error())
			}
		})
	}
}

func TestManifestsAreOfTheirTypes(t *testing.T) {
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, o := range mustRender(t, values) {
				require.False(t, seen[o.Kind+" "+o.Metadata.Name], "twice: %s %s", o.Kind, o.Metadata.Name)
				seen[o.Kind+" "+o.Metadata.Name] = true
				switch o.Kind {
				case "StatefulSet":
					checkSet(t, decode[appsv1.StatefulSet](t, o))
				case "Service":
					decode[corev1.Service](t, o)
				case "ConfigMap":
					decode[corev1.ConfigMap](t, o)
				case "PersistentVolumeClaim":
					decode[corev1.PersistentVolumeClaim](t, o)
				case "NetworkPolicy":
					decode[networkingv1.NetworkPolicy](t, o)
				case "PodDisruptionBudget":
					decode[policyv1.PodDisruptionBudget](t, o)
				case "ServiceMonitor":
					decode[monitoringv1.ServiceMonitor](t, o)
				case "PrometheusRule":
					rule := decode[monitoringv1.PrometheusRule](t, o)
					require.NotEmpty(t, rule.Spec.Groups)
				default:
					require.Fail(t, "a kind without a type here", o.Kind)
				}
			}
			require.NotEmpty(t, seen)
		})
	}
}

// checkSet checks what every pod has: no rights, a root that cannot be written, limits, and volumes for all mounts.
func checkSet(t *testing.T, s *appsv1.StatefulSet) {
	require.Equal(t, s.Spec.Selector.MatchLabels, subset(s.Spec.Template.Labels, s.Spec.Selector.MatchLabels))
	pod := s.Spec.Template.Spec
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.False(t, *pod.AutomountServiceAccountToken)
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Secret != nil {
			require.EqualValues(t, 0o440, *v.Secret.DefaultMode)
		}
	}
	for _, c := range s.Spec.VolumeClaimTemplates {
		volumes[c.Name] = true
	}
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.False(t, c.Resources.Limits.Memory().IsZero())
	mounted := map[string]bool{}
	for _, m := range c.VolumeMounts {
		require.True(t, volumes[m.Name], "%s: no volume %s", s.Name, m.Name)
		mounted[m.Name] = true
	}
	require.Len(t, mounted, len(volumes), "%s: a volume that is not mounted", s.Name)
	if c.Name == "worker" {
		return
	}
	require.NotNil(t, c.ReadinessProbe)
	require.NotNil(t, c.LivenessProbe)
}

// subset returns the labels of all that want has.
func subset(all, want map[string]string) map[string]string {
	out := map[string]string{}
	for k := range want {
		out[k] = all[k]
	}
	return out
}

func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	bare := "mode: split\ntls: {enabled: true}\ninstallationKey: {secretName: k}\nnats: {url: tls://n:4222}\n"
	split := bare + "archive: {claimName: a}\n"
	for _, values := range []string{split, bare + "settings: {erase-after: 0}"} {
		_, err := render(t, values)
		require.NoError(t, err, values)
	}
	for values, want := range map[string]string{
		// By the schema, which names the place of the value.
		"mode: double":                               "at '/mode': value must be one of 'single', 'split'",
		"mod: split":                                 "additional properties 'mod' not allowed",
		"image: {repo: x}":                           "at '/image': additional properties 'repo' not allowed",
		"image: {pullPolicy: Sometimes}":             "at '/image/pullPolicy'",
		"image: {repository: \"\"}":                  "at '/image/repository'",
		"tls: {enabled: \"yes\"}":                    "at '/tls/enabled': got string, want boolean",
		"tls: {secretName: Mine}":                    "at '/tls/secretName'",
		"settings: {logLevel: debug}":                "at '/settings': additional properties 'logLevel' not allowed",
		"nats: {url: \"n:4222\"}":                    "at '/nats/url'",
		"nats: {replicas: 2}":                        "at '/nats/replicas'",
		"single: {persistence: {size: 20 GB}}":       "at '/single/persistence/size'",
		"single: {persistence: {accessModes: [Rw]}}": "at '/single/persistence/accessModes/0'",
		"split: {services: {work: {replicas: 0}}}":   "at '/split/services/work/replicas': minimum: got 0, want 1",
		"split: {services: {agents: {replicas: 1}}}": "additional properties 'agents' not allowed",
		"publicUrl: quartet.example.com":             "at '/publicUrl'",
		"worker: {args: --pool go}":                  "at '/worker/args': got string, want array",
		"service: {type: Ingress}":                   "at '/service/type'",
		"serviceMonitor: {interval: often}":          "at '/serviceMonitor/interval'",
		"archive: {url: https://s3.example.com}":     "at '/archive/url'",
		// By the templates: values that do not go together.
		"mode: split\ntls: {enabled: true}\ninstallationKey: {secretName: k}":      "nats.url is empty",
		"mode: split\ninstallationKey: {secretName: k}\nnats: {url: tls://n:4222}": "tls.enabled is false",
		"mode: split\ntls: {enabled: true}\nnats: {url: tls://n:4222}":             "installationKey.secretName is empty",
		"archive: {url: \"s3://b?region=x\"}":                                      "archive.secretName is empty",
		"archive: {secretName: s}":                                                 "archive.url is empty",
		"archive: {claimName: a}":                                                  "is for mode split",
		"archive: {claimName: a, secretName: s, url: \"s3://b?region=x\"}":         "exclude each other",
		bare: "archive.url and archive.claimName are empty",
		split + "split: {services: {work: {replicas: 2}}}": "must have ReadWriteMany",
	} {
		_, err := render(t, values)
		require.ErrorContains(t, err, want, values)
	}
}

func TestTheSplitFormHasEveryService(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docker-compose.yml"))
	require.NoError(t, err)
	var compose struct {
		Services map[string]struct {
			Command []string `json:"command"`
		} `json:"services"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &compose))
	all := mustRender(t, sets["split"])
	served := 0
	for service, of := range compose.Services {
		if len(of.Command) == 0 || of.Command[0] != "serve" {
			continue
		}
		served++
		s := decode[appsv1.StatefulSet](t, one(t, all, "StatefulSet", "prod-quartet-"+service))
		require.Equal(t, of.Command, s.Spec.Template.Spec.Containers[0].Args[:2])
		budget := *s.Spec.Replicas > 1
		require.Equal(t, budget,
			slices.ContainsFunc(all, func(o object) bool {
				return o.Kind == "PodDisruptionBudget" &&
					o.Metadata.Name == s.Name
			}))
	}
	require.Equal(t, 8, served)
}

func TestAlertsAreThoseOfTheRepository(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", "alerts.yml"))
	require.NoError(t, err)
	copied, err := os.ReadFile(filepath.Join(chartDir, "files", "alerts.yml"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(raw, copied), "cp deploy/prometheus/alerts.yml deploy/helm/quartet/files/alerts.yml")
	rule := decode[monitoringv1.PrometheusRule](t, one(t, mustRender(t, sets["single with everything"]),
		"PrometheusRule", "prod-quartet"))
	require.GreaterOrEqual(t, len(rule.Spec.Groups[0].Rules), 5)
}

func TestTheChartIsOfThisVersion(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "pkg", "version", "VERSION"))
	require.NoError(t, err)
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(raw)), chart.Metadata.AppVersion)
	require.Equal(t, chart.Metadata.AppVersion, chart.Metadata.Version)
}

// settings returns the names of docs/configuration.md, which is generated from the code.
func settings(t *testing.T) (names, variables []string) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		names = append(names, m[1])
		variables = append(variables, "QUARTET_"+strings.ToUpper(strings.ReplaceAll(m[1], "-", "_")))
	}
	require.Greater(t, len(names), 50)
	return names, variables
}

// config returns the settings of a rendered ConfigMap.
func config(t *testing.T, all []object) map[string]any {
	out := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(decode[corev1.ConfigMap](t, one(t, all, "ConfigMap", "prod-quartet")).
		Data["quartet.yaml"]), &out))
	return out
}

func TestSettingsAndVariablesExist(t *testing.T) {
	names, variables := settings(t)
	variables = append(variables, "QUARTET_ADDRESS", "QUARTET_TOKEN_FILE") // of clients
	for set, values := range sets {
		all := mustRender(t, values)
		for name := range config(t, all) {
			require.Contains(t, names, name, set)
		}
		for _, o := range all {
			if o.Kind != "StatefulSet" {
				continue
			}
			for _, e := range decode[appsv1.StatefulSet](t, o).Spec.Template.Spec.Containers[0].Env {
				if strings.HasPrefix(e.Name, "QUARTET_") {
					require.Contains(t, variables, e.Name, set)
				}
			}
		}
	}
}

// document renders settings as the file that the binary reads.
func document(t *testing.T, s map[string]any) []byte {
	out, err := json.Marshal(s)
	require.NoError(t, err, fmt.Sprint(s))
	return out
}
