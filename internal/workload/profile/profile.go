// Package profile says how each kind is treated on physical clusters: how many targets have it, where
// its replicas and its pods are described, and how its status comes back. It is data; no other
// package knows kinds, except for the status of Deployments.
package profile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// Classes that only kinds of Kubernetes have.
const (
	// Volume is a kind that goes where the first workload that uses it is, and stays there.
	Volume workload.ResourceClass = "Volume"
	// Dependency is a kind that goes where objects that refer to it are. It has no Assignment.
	Dependency workload.ResourceClass = "Dependency"
	// Unplaced is a kind that goes nowhere: the server itself does what its objects say.
	Unplaced workload.ResourceClass = "Unplaced"
)

// A Profile is how a kind is treated.
type Profile struct {
	schema.GroupVersionResource
	Class workload.ResourceClass
	// Replicas is the path of the number of replicas. Empty if the kind has none.
	Replicas []string
	// Template is the path of the template of its pods. Empty if the kind has none.
	Template []string
	// Claims is the path of templates of volume claims. A workload that has some stays where its
	// data are.
	Claims []string
	// Counters are fields of the status that are summed. Empty means that the status is that of
	// the one target.
	Counters []string
	// Addresses is the path of a list in the status that has what any target has.
	Addresses []string
	// Observes is true if the status has an observedGeneration.
	Observes bool
	// Conditions is true if the status has conditions.
	Conditions bool
	// Finishes is true for kinds that come to an end, and shall not begin anew then.
	Finishes bool
	// Quiesce is a merge patch that makes a physical cluster stop an object and keep it. Nil if there
	// is none.
	Quiesce map[string]any
	// Strip removes the fields of an object that are not for physical clusters. It may be nil.
	Strip func(*unstructured.Unstructured)
}

// Deployments is the kind whose status has rules of its own.
func Deployments() schema.GroupVersionResource {
	return appsv1.SchemeGroupVersion.WithResource("deployments")
}

// ReplicaSets are the kind whose replicas are divided like those of Deployments. A ReplicaSet that a Deployment owns is a
// revision, see [Profile.IsRevision].
func ReplicaSets() schema.GroupVersionResource {
	return appsv1.SchemeGroupVersion.WithResource("replicasets")
}

// Secrets are the kind whose content is a secret.
func Secrets() schema.GroupVersionResource { return corev1.SchemeGroupVersion.WithResource("secrets") }

// ServiceAccounts are a kind of dependencies.
func ServiceAccounts() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("serviceaccounts")
}

// Budgets are the PodDisruptionBudgets.
func Budgets() schema.GroupVersionResource {
	return policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
}

// Policies are the NetworkPolicies.
func Policies() schema.GroupVersionResource {
	return networkingv1.SchemeGroupVersion.WithResource("networkpolicies")
}

// Volumes are the volume claims.
func Volumes() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
}

// Autoscalers are the HorizontalPodAutoscalers.
func Autoscalers() schema.GroupVersionResource {
	return autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers")
}

// Shipped returns the profiles of the kinds of Kubernetes.
func Shipped() []Profile {
	return slices.Concat(pods(), followers(), []Profile{
		{GroupVersionResource: Volumes(), Class: Volume, Conditions: true, Strip: strip([]string{"spec", "volumeName"})},
		{GroupVersionResource: Autoscalers(), Class: Unplaced},
	})
}

// pods returns the profiles of kinds that run pods.
func pods() []Profile {
	replicas, template, cron := []string{"spec", "replicas"}, []string{"spec", "template"}, []string{"spec", "jobTemplate", "spec", "template"}
	volumes := stripVolumes(template)
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	return []Profile{
		{GroupVersionResource: Deployments(), Class: workload.Replicated, Replicas: replicas, Template: template, Strip: volumes, Observes: true, Conditions: true},
		{GroupVersionResource: ReplicaSets(), Class: workload.Replicated, Replicas: replicas, Template: template, Strip: volumes, Observes: true, Conditions: true,
			Counters: []string{"replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "terminatingReplicas"}},
		{GroupVersionResource: apps.WithResource("statefulsets"), Class: workload.Singleton, Replicas: replicas, Template: template, Strip: volumes,
			Claims: []string{"spec", "volumeClaimTemplates"}, Observes: true, Conditions: true, Quiesce: map[string]any{"spec": map[string]any{"replicas": 0}}},
		{GroupVersionResource: apps.WithResource("daemonsets"), Class: workload.Everywhere, Template: template, Strip: volumes, Observes: true, Conditions: true,
			Counters: []string{"currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable", "numberUnavailable"}},
		{GroupVersionResource: batch.WithResource("jobs"), Class: workload.Singleton, Template: template, Conditions: true, Finishes: true, Strip: stripJob,
			Quiesce: map[string]any{"spec": map[string]any{"suspend": true}}},
		{GroupVersionResource: batch.WithResource("cronjobs"), Class: workload.Singleton, Template: cron, Strip: stripVolumes(cron)},
	}
}

// followers returns the profiles of kinds that are wherever their namespace has a workload.
func followers() []Profile {
	addresses := []string{"loadBalancer", "ingress"}
	return []Profile{
		{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services"), Class: workload.Follows, Addresses: addresses, Conditions: true, Strip: stripService},
		{GroupVersionResource: networkingv1.SchemeGroupVersion.WithResource("ingresses"), Class: workload.Follows, Addresses: addresses},
		{GroupVersionResource: Policies(), Class: workload.Follows},
		{GroupVersionResource: Budgets(), Class: workload.Follows, Observes: true, Conditions: true,
			Counters: []string{"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"}},
	}
}

// Dependencies returns the profiles of the kinds that follow the objects that refer to them.
func Dependencies() []Profile {
	return []Profile{
		{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("configmaps"), Class: Dependency},
		{GroupVersionResource: Secrets(), Class: Dependency},
		{GroupVersionResource: ServiceAccounts(), Class: Dependency, Strip: stripAccount},
	}
}

// IsShipped reports whether a kind is one of Kubernetes.
func IsShipped(of schema.GroupResource) bool {
	return slices.ContainsFunc(slices.Concat(Shipped(), Dependencies()), func(p Profile) bool { return p.GroupResource() == of })
}

// Of returns the profile of a resource that is in the export of a compute workspace, as its owner
// describes it.
func Of(r *workload.ResourceProfile) Profile {
	p := Profile{
		GroupVersionResource: schema.GroupVersionResource{Group: r.Spec.Group, Version: r.Spec.Version, Resource: r.Spec.Resource},
		Class:                r.Spec.Class, Replicas: r.Spec.ReplicasPath, Template: r.Spec.PodTemplatePath, Conditions: r.Spec.Conditions,
	}
	if p.Class == workload.Replicated || p.Class == workload.Everywhere || p.Class == workload.Follows {
		p.Counters = r.Spec.Counters
	}
	return p
}

// PodSpec returns the path to the specification of the pods of a kind of Kubernetes. For other kinds, it
// returns the path of no field: their templates may have fewer fields than pods.
func (p *Profile) PodSpec() []string {
	if len(p.Template) == 0 || p.Group != appsv1.GroupName && p.Group != batchv1.GroupName {
		return []string{""}
	}
	return append(slices.Clone(p.Template), "spec")
}

// Grace returns how long the pods of an object may take to end.
func (p *Profile) Grace(o *unstructured.Unstructured) time.Duration {
	seconds, ok, err := unstructured.NestedInt64(o.Object, append(p.PodSpec(), "terminationGracePeriodSeconds")...)
	if err != nil || !ok {
		seconds = corev1.DefaultTerminationGracePeriodSeconds
	}
	return time.Duration(max(0, min(seconds, 1<<31-1))) * time.Second
}

// Placed reports whether targets have copies of the objects of the kind.
func (p *Profile) Placed() bool { return p.Class != Unplaced }

// strip removes fields.
func strip(paths ...[]string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		for _, path := range paths {
			unstructured.RemoveNestedField(o.Object, path...)
		}
	}
}

// stripVolumes removes the names of volumes from the templates of volume claims in an object: a workspace cannot
// ask for volumes of others.
func stripVolumes(template []string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		for _, claim := range items(o.Object, "spec", "volumeClaimTemplates") {
			unstructured.RemoveNestedField(claim, "spec", "volumeName")
		}
		for _, volume := range items(o.Object, append(slices.Clone(template), "spec", "volumes")...) {
			unstructured.RemoveNestedField(volume, "ephemeral", "volumeClaimTemplate", "spec", "volumeName")
		}
	}
}

// items returns the objects of a list in an object, which are not copied.
func items(of map[string]any, path ...string) (all []map[string]any) {
	list, _, _ := unstructured.NestedFieldNoCopy(of, path...)
	found, _ := list.([]any)
	for _, item := range found {
		if o, ok := item.(map[string]any); ok {
			all = append(all, o)
		}
	}
	return all
}

// stripJob is stripVolumes, and removes the selector that the workspace has generated for a Job, as physical
// clusters generate their own, and the time after which the Job is deleted.
func stripJob(o *unstructured.Unstructured) {
	stripVolumes([]string{"spec", "template"})(o)
	// A copy that went away would begin anew. The server deletes Jobs in time, and so their copies.
	unstructured.RemoveNestedField(o.Object, "spec", "ttlSecondsAfterFinished")
	if manual, _, _ := unstructured.NestedBool(o.Object, "spec", "manualSelector"); manual {
		return
	}
	unstructured.RemoveNestedField(o.Object, "spec", "selector")
	for _, label := range []string{batchv1.ControllerUidLabel, batchv1.JobNameLabel, "controller-uid", "job-name"} {
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "labels", label)
		unstructured.RemoveNestedField(o.Object, "metadata", "labels", label)
	}
}

// stripService removes the addresses of a Service: each physical cluster has its own.
func stripService(o *unstructured.Unstructured) {
	if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != corev1.ClusterIPNone {
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIP")
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
	}
}

// stripAccount removes what gives a service account rights outside of its cluster: clouds read its
// annotations.
func stripAccount(o *unstructured.Unstructured) {
	o.SetAnnotations(nil)
	unstructured.RemoveNestedField(o.Object, "secrets")
}

// IsRevision reports whether an object is the ReplicaSet of a revision of a Deployment, which goes to no physical cluster.
// One that was placed before it got its owner is none.
func (p *Profile) IsRevision(o *unstructured.Unstructured) bool {
	if p.GroupVersionResource != ReplicaSets() || slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.Kind == "Deployment" && strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/")
}

// Finished reports whether an object has come to its end.
func (p *Profile) Finished(o *unstructured.Unstructured) bool {
	if !p.Finishes {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		of, _ := c.(map[string]any)
		return of["status"] == "True" && (of["type"] == string(batchv1.JobComplete) || of["type"] == string(batchv1.JobFailed))
	})
}

// Ended returns a status that says that an object has come to its end, and nothing else.
func Ended() map[string]any {
	return map[string]any{"conditions": []any{map[string]any{"type": string(batchv1.JobComplete), "status": "True"}}}
}

// Expires returns how long after its end an object is deleted, and when it ended. It reports false if
// it stays.
func (p *Profile) Expires(o *unstructured.Unstructured) (after time.Duration, ended time.Time, ok bool) {
	seconds, set, err := unstructured.NestedInt64(o.Object, "spec", "ttlSecondsAfterFinished")
	if err != nil || !set || !p.Finished(o) {
		return 0, ended, false
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		of, _ := c.(map[string]any)
		text, _ := of["lastTransitionTime"].(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil && at.After(ended) {
			ended = at
		}
	}
	return time.Duration(seconds) * time.Second, ended, !ended.IsZero()
}

// Wants returns the number of replicas that an object wants, 1 by default. It returns nil if the
// kind has none.
func (p *Profile) Wants(o *unstructured.Unstructured) *int32 {
	if len(p.Replicas) == 0 {
		return nil
	}
	n, ok, err := unstructured.NestedInt64(o.Object, p.Replicas...)
	if err != nil || !ok {
		n = 1
	}
	return new(int32(max(0, min(n, 1<<31-1))))
}

// Misfit says why an object does not fit the profile: a path of the profile leads to something else. It
// returns "" if it fits.
func (p *Profile) Misfit(o *unstructured.Unstructured) string {
	if len(p.Replicas) > 0 {
		if _, _, err := unstructured.NestedInt64(o.Object, p.Replicas...); err != nil {
			return fmt.Sprintf("its ResourceProfile says that %s is the number of replicas, and that is not a whole number", strings.Join(p.Replicas, "."))
		}
	}
	if len(p.Template) > 0 {
		if _, _, err := unstructured.NestedMap(o.Object, p.Template...); err != nil {
			return fmt.Sprintf("its ResourceProfile says that %s is a template of pods, and that is not an object", strings.Join(p.Template, "."))
		}
	}
	return ""
}

// HasClaims reports whether an object has templates of volume claims.
func (p *Profile) HasClaims(o *unstructured.Unstructured) bool {
	if len(p.Claims) == 0 {
		return false
	}
	all, _, err := unstructured.NestedSlice(o.Object, p.Claims...)
	return err == nil && len(all) > 0
}
