package workload

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// recorded is a client that records its requests.
type recorded struct {
	dynamic.ResourceInterface
	did []string
}

func (r *recorded) Get(context.Context, string, metav1.GetOptions, ...string) (*unstructured.Unstructured, error) {
	r.did = append(r.did, "get")
	return nil, nil
}

func (r *recorded) Patch(_ context.Context, _ string, _ types.PatchType, _ []byte, o metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	r.did = append(r.did, fmt.Sprint("patch", o.DryRun))
	return nil, nil
}

func (r *recorded) Delete(_ context.Context, _ string, o metav1.DeleteOptions, _ ...string) error {
	r.did = append(r.did, fmt.Sprint("delete", o.DryRun))
	return nil
}

// TestRehearsal expects that a dry run changes nothing.
func TestRehearsal(t *testing.T) {
	for r, want := range map[rehearsal][]string{
		inEarnest: {"patch[]", "delete[]"},
		byClient:  {"get"},
		byServer:  {"patch[All]", "delete[All]"},
	} {
		to := &recorded{}
		targets := r.of(to)
		if _, err := targets.Patch(t.Context(), "east", types.MergePatchType, nil, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		if err := targets.Delete(t.Context(), "east", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if !slices.Equal(to.did, want) {
			t.Errorf("%s: %v, want %v", r, to.did, want)
		}
	}
}
