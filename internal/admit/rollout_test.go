package admit

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// TestTheNumberOfRolloutsIsLimited shows that a workspace with too many rollouts can change those that
// it has, and create no more.
func TestTheNumberOfRolloutsIsLimited(t *testing.T) {
	has := int64(0)
	rule := Sharing{
		RolloutUsage: func(cluster.Name) (objects, bytes int64) { return has, 0 },
		MayDo: func(context.Context, user.Info, cluster.Name, string, schema.GroupResource) (bool, error) {
			return true, nil
		},
	}
	rollout := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIExportRollout", "metadata": map[string]any{"name": "r"},
		"spec": map[string]any{"export": "e", "schemas": []any{"v2.widgets.example.com"}},
	}}
	gv := apisv1alpha1.GroupVersion
	write := func(op admission.Operation, before runtime.Object) error {
		return rule.rollout(t.Context(), Request{admission.NewAttributesRecord(rollout, before, gv.WithKind("APIExportRollout"), "", "r", gv.WithResource("apiexportrollouts"), "", op, nil, false, ada), "c"})
	}
	for has = range int64(maxRollouts + 1) {
		err := write(admission.Create, nil)
		if full := has == maxRollouts; full != strings.Contains(fmt.Sprint(err), "at most 500 APIExportRollouts; delete some") || !full && err != nil {
			t.Fatalf("with %d rollouts: %v", has, err)
		}
	}
	if err := write(admission.Update, rollout); err != nil {
		t.Errorf("an update in a full workspace: %v", err)
	}
}
