package controllers

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	typedadmissionv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	admissionapi "k8s.io/kubernetes/pkg/apis/admissionregistration"

	"github.com/unforked/kcp/internal/admit/hooks"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
)

const (
	// maxPolicyKinds is the maximum number of kinds that one policy is checked for. Kubernetes
	// limits them for each rule.
	maxPolicyKinds = 10
	// maxPolicySource limits the source that is compiled to check one policy, in bytes. Each
	// expression is compiled with all variables of its policy, for each kind.
	maxPolicySource = 1 << 20
	// policySourceEach is what the compilation of an expression costs without its source.
	policySourceEach = 4 << 10
	// policyCheckEvery is how often a policy of one cluster is checked at most.
	policyCheckEvery = 100 * time.Millisecond
)

// PolicyTypes compares the expressions of ValidatingAdmissionPolicies with the schemas of the
// kinds that they apply to, and writes what is wrong to their status, as Kubernetes' controller
// manager does. A policy is checked once in each generation.
func PolicyTypes(d Deps) control.Loop {
	unchecked := feed.NewTable(d.Store.Feed(), hooks.Resource("validatingadmissionpolicies"), isUnchecked)
	var checked control.Intervals
	return control.Loop{
		Name: "policy-types",
		On:   d.on(trigger.Table(unchecked)),
		Do: func(ctx context.Context, k control.Key) error {
			if is, ok := unchecked.Get(k.Cluster, "", k.Name); !ok || !is {
				return nil
			}
			of := control.Key{Cluster: k.Cluster}
			if wait := checked.Wait(of, time.Now()); wait > 0 {
				return control.After(wait)
			}
			checked.Begin(of, time.Now(), policyCheckEvery)
			return d.checkPolicy(ctx, k)
		},
	}
}

func isUnchecked(o runtime.Object) (bool, error) {
	p, ok := o.(*admissionapi.ValidatingAdmissionPolicy)
	if !ok {
		return false, fmt.Errorf("a ValidatingAdmissionPolicy is a %T", o)
	}
	return p.Generation > p.Status.ObservedGeneration, nil
}

func (d Deps) checkPolicy(ctx context.Context, k control.Key) error {
	config := d.Client(k.Cluster)
	client, err := typedadmissionv1.NewForConfig(config)
	if err != nil {
		return err
	}
	policies := client.ValidatingAdmissionPolicies()
	p, err := policies.Get(ctx, k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || p.Generation <= p.Status.ObservedGeneration {
		return err
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	p.Status.ObservedGeneration = p.Generation
	p.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: checkTypes(served, p)}
	// An apply patch, which Kubernetes sends, would remove typeChecking with its last warning.
	_, err = policies.UpdateStatus(ctx, p, metav1.UpdateOptions{FieldManager: "validatingadmissionpolicy-status"})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// checkTypes returns the warnings for a policy. Beyond the limit on what is compiled, expressions
// are not checked, and a warning says so.
func checkTypes(client discovery.DiscoveryInterface, p *admissionregistrationv1.ValidatingAdmissionPolicy) (out []admissionregistrationv1.ExpressionWarning) {
	kinds := &policyKinds{client: client, left: maxPolicyKinds, listed: map[schema.GroupVersion]*metav1.APIResourceList{}}
	checker := &validating.TypeChecker{SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client}, RestMapper: kinds}
	at := checker.CreateContext(p)
	var variables int
	for _, v := range p.Spec.Variables {
		variables += len(v.Expression) + policySourceEach
	}
	left := maxPolicySource
	check := func(field, expression string) bool {
		left -= (maxPolicyKinds - kinds.left) * (len(expression) + policySourceEach + variables)
		if left < 0 {
			out = append(out, admissionregistrationv1.ExpressionWarning{FieldRef: field, Warning: "types are not checked from here on: the policy is too large"})
			return false
		}
		if found := checker.CheckExpression(at, expression).String(); found != "" {
			out = append(out, admissionregistrationv1.ExpressionWarning{FieldRef: field, Warning: found})
		}
		return true
	}
	for i, v := range p.Spec.Validations {
		field := fmt.Sprintf("spec.validations[%d].", i)
		if !check(field+"expression", v.Expression) || v.MessageExpression != "" && !check(field+"messageExpression", v.MessageExpression) {
			break
		}
	}
	return out
}

// policyKinds finds the kinds that a cluster serves as the resources of a policy.
type policyKinds struct {
	meta.RESTMapper // the type checker calls only KindsFor
	client          discovery.DiscoveryInterface
	left            int // kinds that it may still return
	listed          map[schema.GroupVersion]*metav1.APIResourceList
}

// KindsFor implements [meta.RESTMapper].
func (k *policyKinds) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	gv := r.GroupVersion()
	list, known := k.listed[gv]
	if !known && len(k.listed) < maxPolicyKinds {
		list, _ = k.client.ServerResourcesForGroupVersion(gv.String()) // without one, nothing is checked
		k.listed[gv] = list
	}
	if list != nil && k.left > 0 {
		for _, served := range list.APIResources {
			if served.Name == r.Resource {
				k.left--
				return []schema.GroupVersionKind{gv.WithKind(served.Kind)}, nil
			}
		}
	}
	return nil, &meta.NoResourceMatchError{PartialResource: r}
}
