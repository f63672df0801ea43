package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/test/child"
)

const (
	registrations = "/apis/admissionregistration.k8s.io/v1/"
	quotas        = "/api/v1/namespaces/default/resourcequotas"
	leases        = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

	hooks     = 5  // of each workspace
	rules     = 20 // policies of each regulated workspace
	regulated = 20 // workspaces
)

// object is JSON.
type object = map[string]any

// labelled returns a config map of some keys that only the webhooks or policies of a storm concern:
// in the short form, storms share the workspaces.
func labelled(of string, keys int) []byte {
	var data strings.Builder
	for i := range keys {
		fmt.Fprintf(&data, `"k%d":"",`, i)
	}
	return []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"storm-","labels":{"storm":"` + of + `"}},"data":{` + strings.TrimSuffix(data.String(), ",") + `}}`)
}

// creations matches the creations of the config maps of a storm.
func creations(of string) (rules []object, selector object) {
	return []object{{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"CREATE"}, "resources": []string{"configmaps"}}},
		object{"matchLabels": object{"storm": of}}
}

// hookUp creates webhooks whose server accepts connections and says nothing.
func hookUp(ctx context.Context, w *world) error {
	matches, selector := creations("webhooks")
	return w.each(ctx, len(w.workspaces), func(ctx context.Context, c *child.Client, path string) error {
		for i := range hooks {
			if err := register(ctx, c, path, "validatingwebhookconfigurations", object{
				"kind": "ValidatingWebhookConfiguration", "metadata": object{"name": fmt.Sprint("storm", i)},
				"webhooks": []object{{
					"name": "storm.example.com", "clientConfig": object{"url": w.hole}, "rules": matches, "objectSelector": selector,
					"sideEffects": "None", "admissionReviewVersions": []string{"v1"}, "timeoutSeconds": 30,
				}},
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// regulate creates policies that take time with the square of the number of keys.
func regulate(ctx context.Context, w *world) error {
	matches, selector := creations("policies")
	return w.each(ctx, regulated, func(ctx context.Context, c *child.Client, path string) error {
		for i := range rules {
			name := fmt.Sprint("storm", i)
			if err := register(ctx, c, path, "validatingadmissionpolicies", object{
				"kind": "ValidatingAdmissionPolicy", "metadata": object{"name": name},
				"spec": object{
					"matchConstraints": object{"resourceRules": matches, "objectSelector": selector},
					"validations":      []object{{"expression": "object.data.all(a, object.data.all(b, a + b != 'storm'))"}},
				},
			}); err != nil {
				return err
			}
			if err := register(ctx, c, path, "validatingadmissionpolicybindings", object{
				"kind": "ValidatingAdmissionPolicyBinding", "metadata": object{"name": name},
				"spec": object{"policyName": name, "validationActions": []string{"Deny"}},
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

func register(ctx context.Context, c *child.Client, path, resource string, o object) error {
	o["apiVersion"] = "admissionregistration.k8s.io/v1"
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := post(ctx, c, path+registrations+resource, body); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// churn creates and deletes a quota with many limits, and creates objects that it counts.
func churn(t *target, i int) (method, path string, body []byte) {
	at := t.at(i / 4)
	switch i % 4 {
	case 0:
		var hard strings.Builder
		for n := range 199 {
			fmt.Fprintf(&hard, `"count/k%d.example.com":"1",`, n)
		}
		return http.MethodPost, at + quotas, []byte(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"storm"},"spec":{"hard":{` + hard.String() + `"count/leases.coordination.k8s.io":"50"}}}`)
	case 1:
		return http.MethodDelete, at + quotas + "/storm", nil
	default:
		return http.MethodPost, at + leases, []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"generateName":"storm-"}}`)
	}
}
