package admit

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/bounds"
)

const (
	// Every server keeps the webhooks and policies of a cluster in memory, and compares each
	// write with all of them. These limits are several times what known collections have.
	maxHooks     = 200
	maxHookBytes = 4 << 20
)

// Hooks limits the webhooks and policies of a cluster.
type Hooks struct {
	// Usage returns how many objects of a resource a cluster has, and their size in bytes.
	Usage func(cluster.Name, schema.GroupResource) (objects, bytes int64)
}

// Rule refuses webhooks that are services, and webhooks and policies beyond the limits.
func (h Hooks) Rule() Rule {
	// Validation of the kind compiles expressions, before the rule's Validate is called.
	return Rule{Name: "kcp.io/AdmissionConfiguration", Mutate: patterns, Validate: h.validate}
}

// patterns refuses regular expressions in the expressions of an object that would be too large
// once they are compiled.
func patterns(_ context.Context, r Request) error {
	if r.GetResource().Group != admissionregistration.GroupName || r.GetObject() == nil {
		return nil
	}
	var count bounds.Patterns
	for _, text := range Expressions(r.GetObject()) {
		if err := count.AddCEL(text); err != nil {
			return apierrors.NewInvalid(r.GetKind().GroupKind(), r.GetName(), field.ErrorList{field.Forbidden(field.NewPath("spec"), err.Error())})
		}
	}
	return nil
}

// Expressions returns the CEL expressions of a webhook configuration or policy, in the internal
// version. Other objects have none.
func Expressions(o runtime.Object) (all []string) {
	conditions := func(in []admissionregistration.MatchCondition) {
		for _, c := range in {
			all = append(all, c.Expression)
		}
	}
	variables := func(in []admissionregistration.Variable) {
		for _, v := range in {
			all = append(all, v.Expression)
		}
	}
	switch o := o.(type) {
	case *admissionregistration.MutatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			conditions(w.MatchConditions)
		}
	case *admissionregistration.ValidatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			conditions(w.MatchConditions)
		}
	case *admissionregistration.ValidatingAdmissionPolicy:
		conditions(o.Spec.MatchConditions)
		variables(o.Spec.Variables)
		for _, v := range o.Spec.Validations {
			all = append(all, v.Expression, v.MessageExpression)
		}
		for _, a := range o.Spec.AuditAnnotations {
			all = append(all, a.ValueExpression)
		}
	case *admissionregistration.MutatingAdmissionPolicy:
		conditions(o.Spec.MatchConditions)
		variables(o.Spec.Variables)
		for _, m := range o.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				all = append(all, m.ApplyConfiguration.Expression)
			}
			if m.JSONPatch != nil {
				all = append(all, m.JSONPatch.Expression)
			}
		}
	}
	return all
}

func (h Hooks) validate(_ context.Context, r Request) error {
	gr := r.GetResource().GroupResource()
	if gr.Group != admissionregistration.GroupName || r.GetSubresource() != "" || r.GetObject() == nil {
		return nil
	}
	if op := r.GetOperation(); op != admission.Create && op != admission.Update {
		return nil
	}
	if errs := services(r); len(errs) > 0 {
		return apierrors.NewInvalid(r.GetKind().GroupKind(), r.GetName(), errs)
	}
	if err := descendingPolicy(r); err != nil {
		return err
	}
	objects, bytes := h.Usage(r.Cluster, gr)
	if r.GetOperation() == admission.Create && objects >= maxHooks {
		return r.Forbid(fmt.Errorf("a workspace has at most %d %s; delete some, or put several webhooks or expressions into one", maxHooks, gr.Resource))
	}
	if bytes >= maxHookBytes {
		return r.Forbid(fmt.Errorf("the %s of a workspace have at most 4 MiB; delete some", gr.Resource))
	}
	return nil
}

// services returns an error for each webhook that is a service.
func services(r Request) (errs field.ErrorList) {
	at := field.NewPath("webhooks")
	add := func(i int, c admissionregistration.WebhookClientConfig) {
		if c.Service != nil {
			errs = append(errs, field.Forbidden(at.Index(i).Child("clientConfig", "service"), "workspaces have no services; use clientConfig.url"))
		}
	}
	switch o := r.GetObject().(type) {
	case *admissionregistration.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			add(i, o.Webhooks[i].ClientConfig)
		}
	case *admissionregistration.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			add(i, o.Webhooks[i].ClientConfig)
		}
	}
	return errs
}

// descendingPolicy refuses the label that extends a binding of a policy to the workspaces below,
// where it has no effect or is not safe. A policy that changes objects could give its author the
// rights of the users below.
func descendingPolicy(r Request) error {
	o, err := meta.Accessor(r.GetObject())
	if err != nil {
		return nil //nolint:nilerr // it has no labels
	}
	value, labelled := o.GetLabels()[core.PolicyDescendantsLabel]
	if !labelled || value == "false" {
		return nil
	}
	at := field.NewPath("metadata", "labels").Key(core.PolicyDescendantsLabel)
	var refusal *field.Error
	switch {
	case value != "true":
		refusal = field.NotSupported(at, value, []string{"true", "false"})
	case r.GetResource().Resource == "validatingadmissionpolicybindings", r.GetResource().Resource == "mutatingadmissionpolicybindings" && r.Cluster == cluster.Root:
		return nil
	case r.GetResource().Resource == "mutatingadmissionpolicybindings":
		refusal = field.Forbidden(at, "only in the root workspace: a policy that changes objects of others could take over their rights; use a ValidatingAdmissionPolicy")
	default:
		refusal = field.Forbidden(at, "only for ValidatingAdmissionPolicyBindings and, in the root workspace, MutatingAdmissionPolicyBindings")
	}
	return apierrors.NewInvalid(r.GetKind().GroupKind(), r.GetName(), field.ErrorList{refusal})
}
