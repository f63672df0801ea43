package profile

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func find(resource string) *Profile {
	for _, p := range append(Shipped(), Dependencies()...) {
		if p.Resource == resource {
			return &p
		}
	}
	return nil
}

func TestRefs(t *testing.T) {
	pod := `{"serviceAccountName": "runner", "imagePullSecrets": [{"name": "registry"}],
		"volumes": [{"name": "a", "configMap": {"name": "files", "optional": true}}, {"name": "b", "secret": {"secretName": "keys"}},
			{"name": "c", "projected": {"sources": [{"secret": {"name": "projected", "optional": true}}, {"configMap": {"name": "kube-root-ca.crt"}}]}},
			{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
		"initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "both", "optional": true}}]}],
		"containers": [{"name": "m", "envFrom": [{"secretRef": {"name": "env"}}], "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "both", "key": "x"}}}]}]}`
	want := "[{configmaps both false} {configmaps files true} {persistentvolumeclaims data false} {secrets env false} {secrets keys false} " +
		"{secrets projected true} {secrets registry false} {serviceaccounts runner false}]"
	for resource, text := range map[string]string{
		"deployments": `{"spec": {"template": {"spec": %s}}}`, "cronjobs": `{"spec": {"jobTemplate": {"spec": {"template": {"spec": %s}}}}}`,
	} {
		if got := fmt.Sprint(find(resource).Refs(object(t, fmt.Sprintf(text, pod)))); got != want {
			t.Errorf("%s: %s", resource, got)
		}
	}
	if got := fmt.Sprint(find("ingresses").Refs(object(t, `{"spec": {"tls": [{"secretName": "x"}, {}, 3]}}`))); got != "[{secrets x false}]" {
		t.Error(got)
	}
	// What no registry would have stored refers to nothing.
	for _, text := range []string{`{}`, `{"spec": 1}`, `{"spec": {"template": []}}`, `{"spec": {"template": {"spec": {"volumes": 3}}}}`} {
		if got := find("deployments").Refs(object(t, text)); len(got) > 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
	// There is a bound.
	many := `{"spec": {"template": {"spec": {"containers": [], "imagePullSecrets": [`
	for i := range 3 * MostRefs {
		many += fmt.Sprintf(`{"name": "s%d"},`, i)
	}
	if got := find("deployments").Refs(object(t, many[:len(many)-1]+`]}}}}`)); len(got) != MostRefs {
		t.Errorf("%d references", len(got))
	}
}

func TestStrip(t *testing.T) {
	for resource, c := range map[string]struct{ text, want string }{
		"jobs": {`{"spec": {"selector": {"x": "y"}, "template": {"metadata": {"labels": {"controller-uid": "1", "app": "a"}}}}}`,
			`map[spec:map[template:map[metadata:map[labels:map[app:a]]]]]`},
		"services":               {`{"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "x"}}`, `map[spec:map[type:x]]`},
		"persistentvolumeclaims": {`{"spec": {"volumeName": "stolen", "accessModes": []}}`, `map[spec:map[accessModes:[]]]`},
		"serviceaccounts":        {`{"metadata": {"annotations": {"role": "admin"}, "name": "n"}, "secrets": []}`, `map[metadata:map[name:n]]`},
	} {
		o := object(t, c.text)
		find(resource).Strip(o)
		if got := fmt.Sprint(o.Object); got != c.want {
			t.Errorf("%s: %s", resource, got)
		}
	}
	for resource, template := range map[string]string{"deployments": `"template": %s`, "replicasets": `"template": %s`, "daemonsets": `"template": %s`, "jobs": `"template": %s`,
		"statefulsets": `"volumeClaimTemplates": [{"spec": {"volumeName": "stolen", "storageClassName": "kept"}}, 1], "template": %s`,
		"cronjobs":     `"jobTemplate": {"spec": {"template": %s}}`} {
		volumes := `{"spec": {"volumes": [{"name": "kept"}, {"ephemeral": {"volumeClaimTemplate": {"spec": {"volumeName": "stolen", "accessModes": ["kept"]}}}}]}}`
		o := object(t, fmt.Sprintf(`{"spec": {`+template+`}}`, volumes))
		find(resource).Strip(o)
		kept := 2
		if resource == "statefulsets" {
			kept = 3
		}
		if text := fmt.Sprint(o.Object); strings.Contains(text, "stolen") || strings.Count(text, "kept") != kept {
			t.Errorf("%s: %s", resource, text)
		}
	}
	headless := object(t, `{"spec": {"clusterIP": "None"}}`)
	if find("services").Strip(headless); fmt.Sprint(headless.Object) != "map[spec:map[clusterIP:None]]" {
		t.Error(headless)
	}
}

func TestMisfit(t *testing.T) {
	p := Profile{Replicas: []string{"spec", "size", "count"}, Template: []string{"spec", "pods"}}
	for text, want := range map[string]string{
		`{"spec": {"size": {"count": 3}, "pods": {}}}`: "",
		`{"spec": {}}`:                           "", // defaults
		`{}`:                                     "",
		`{"spec": {"size": {"count": "three"}}}`: "spec.size.count is the number of replicas, and that is not",
		`{"spec": {"size": 3}}`:                  "spec.size.count is the number of replicas, and that is not",
		`{"spec": {"pods": ["a"]}}`:              "spec.pods is a template of pods, and that is not",
	} {
		if got := p.Misfit(object(t, text)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
