package admit

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
)

// ForceDelete lets only operators force a deletion that is stuck. It records the operator
// on the object, and in the audit event of the request.
func ForceDelete() Rule {
	return Rule{
		Name: "core.kcp.io/ForceDelete",
		Mutate: func(_ context.Context, r Request) error {
			if !r.forceable() {
				return nil
			}
			was, is := forcing(r.Old()), forcing(r.Object())
			by := was.by
			if is.why != was.why && is.why != "" {
				by = r.GetUserInfo().GetName()
			} else if is.why == "" {
				by = ""
			}
			if is.by != by {
				annotations := maps.Clone(r.Object().GetAnnotations())
				if annotations == nil {
					annotations = map[string]string{}
				}
				if annotations[core.ForceDeletedByAnnotation] = by; by == "" {
					delete(annotations, core.ForceDeletedByAnnotation)
				}
				r.Object().SetAnnotations(annotations)
			}
			return nil
		},
		Validate: func(_ context.Context, r Request) error {
			if !r.forceable() || forcing(r.Old()).why == forcing(r.Object()).why {
				return nil
			}
			u := r.GetUserInfo()
			switch {
			case !r.Privileged() && (u == nil || !auth.IsMember(r.Cluster, u, auth.AdminGroup)):
				return r.Forbid(fmt.Errorf("annotation %s can only be changed by operators, who are in the group %s", core.ForceDeleteAnnotation, auth.AdminGroup))
			case r.Old() == nil || r.Old().GetDeletionTimestamp() == nil:
				return r.Forbid(errors.New("only a deletion that has begun can be forced; delete it first, and see whether that is not enough"))
			}
			why := forcing(r.Object()).why
			return r.AddAnnotation(core.ForceDeleteAnnotation, fmt.Sprintf("%s of logical cluster %s, deletion forced by %s: %s", r.what(), r.Cluster, u.GetName(), why))
		},
	}
}

// forceable reports whether a request is for an object whose deletion can be forced.
func (r Request) forceable() bool {
	op := r.GetOperation()
	is := r.Is(workspaces) || r.Is(logicalClusters) || r.Is(apiextensionsv1.Resource("customresourcedefinitions"))
	return (op == admission.Create || op == admission.Update) && is && r.Object() != nil
}

// what names the object of a request.
func (r Request) what() string { return fmt.Sprintf("%s %s", r.GetKind().Kind, r.GetName()) }

// forced holds the reason and the user of a forced deletion.
type forced struct{ why, by string }

func forcing(o metav1.Object) forced {
	if o == nil {
		return forced{}
	}
	a := o.GetAnnotations()
	return forced{a[core.ForceDeleteAnnotation], a[core.ForceDeletedByAnnotation]}
}
