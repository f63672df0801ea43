package workload

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// TestRefers finds each way in which objects refer to others.
func TestRefers(t *testing.T) {
	for text, want := range map[string]reference{
		`{template: {spec: {containers: [{envFrom: [{configMapRef: {name: it}}]}]}}}`:                                          {"configmaps", "it"},
		`{template: {spec: {initContainers: [{env: [{name: x, valueFrom: {configMapKeyRef: {name: it, key: k}}}]}]}}}`:         {"configmaps", "it"},
		`{template: {spec: {volumes: [{name: x, configMap: {name: it}}]}}}`:                                                    {"configmaps", "it"},
		`{template: {spec: {volumes: [{name: x, projected: {sources: [{configMap: {name: it}}]}}]}}}`:                          {"configmaps", "it"},
		`{template: {spec: {containers: [{envFrom: [{secretRef: {name: it}}]}]}}}`:                                             {"secrets", "it"},
		`{jobTemplate: {spec: {template: {spec: {containers: [{env: [{name: x, valueFrom: {secretKeyRef: {name: it}}}]}]}}}}}`: {"secrets", "it"},
		`{template: {spec: {volumes: [{name: x, secret: {secretName: it}}]}}}`:                                                 {"secrets", "it"},
		`{template: {spec: {volumes: [{name: x, projected: {sources: [{secret: {name: it}}]}}]}}}`:                             {"secrets", "it"},
		`{template: {spec: {imagePullSecrets: [{name: other}, {name: it}]}}}`:                                                  {"secrets", "it"},
		`{tls: [{hosts: [a.example.com], secretName: it}]}`:                                                                    {"secrets", "it"},
		`{template: {spec: {serviceAccountName: it}}}`:                                                                         {"serviceaccounts", "it"},
		`{template: {spec: {volumes: [{name: x, persistentVolumeClaim: {claimName: it}}]}}}`:                                   {"persistentvolumeclaims", "it"},
	} {
		var spec map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		if !refers(spec, want) {
			t.Errorf("%s does not refer to %v", text, want)
		}
		for _, resource := range []string{"configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"} {
			if resource != want.resource && refers(spec, reference{resource, "it"}) {
				t.Errorf("%s refers to %s", text, resource)
			}
			if refers(spec, reference{resource, "x"}) || refers(spec, reference{resource, ""}) {
				t.Errorf("%s refers to an object of another name among %s", text, resource)
			}
		}
	}
}

func TestHowOf(t *testing.T) {
	for of, want := range map[string]how{"services": follows, "ingresses.networking.k8s.io": follows, "configmaps": referred, "persistentvolumeclaims": stays,
		"horizontalpodautoscalers.autoscaling": scaled, "roles.rbac.authorization.k8s.io": unplaced} {
		if got := howOf(schema.ParseGroupResource(of), false); got != want {
			t.Errorf("%s: got %d, want %d", of, got, want)
		}
	}
	for group, want := range map[string]bool{"": false, "apps": false, "rbac.authorization.k8s.io": false, "scheduling.kcp.io": false, "example.com": true} {
		if custom(group) != want {
			t.Errorf("group %q: custom %v", group, !want)
		}
	}
	if howOf(schema.ParseGroupResource("routes.example.com"), true) != follows {
		t.Error("an object of a kind with a ResourceProfile of the class Follows has an Assignment, and follows")
	}
}
