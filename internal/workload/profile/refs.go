package profile

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// A Ref is a reference to an object of the same namespace.
type Ref struct {
	Resource string // of the core group
	Name     string
	Optional bool // pods start without it
}

// MostRefs is the maximum of references of one object that are followed.
const MostRefs = 100

// Refs returns the objects that an object needs, in order, and each once. Objects that every
// physical cluster has of its own are left out.
func (p *Profile) Refs(o *unstructured.Unstructured) []Ref {
	var all []Ref
	if p.Resource == "ingresses" && p.Group == networkingv1.GroupName {
		all = certificates(o)
	}
	if len(p.Template) > 0 {
		content, _, err := unstructured.NestedFieldNoCopy(o.Object, p.Template...)
		template := &corev1.PodTemplateSpec{}
		if m, ok := content.(map[string]any); err == nil && ok && runtime.DefaultUnstructuredConverter.FromUnstructured(m, template) == nil {
			all = podRefs(&template.Spec)
		}
	}
	all = slices.DeleteFunc(all, func(r Ref) bool { return r.Name == "" || r.native() })
	slices.SortFunc(all, func(a, b Ref) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name), boolCompare(a.Optional, b.Optional))
	})
	// The one that is not optional comes first.
	all = slices.CompactFunc(all, func(a, b Ref) bool { return a.Resource == b.Resource && a.Name == b.Name })
	return all[:min(len(all), MostRefs)]
}

// native reports whether each physical cluster has its own object of the name.
func (r Ref) native() bool {
	return r.Resource == "configmaps" && r.Name == "kube-root-ca.crt" || r.Resource == "serviceaccounts" && r.Name == "default"
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// certificates returns the Secrets of an Ingress.
func certificates(o *unstructured.Unstructured) (refs []Ref) {
	all, _, err := unstructured.NestedSlice(o.Object, "spec", "tls")
	if err != nil {
		return nil
	}
	for _, t := range all {
		if m, ok := t.(map[string]any); ok {
			name, _ := m["secretName"].(string)
			refs = append(refs, Ref{Resource: "secrets", Name: name})
		}
	}
	return refs
}

func podRefs(spec *corev1.PodSpec) []Ref {
	pod, all := &corev1.Pod{Spec: *spec}, optional(spec)
	// Those that upstream visits are required, unless they are known to be optional.
	required := func(resource string) podutil.Visitor {
		return func(name string) bool {
			if !slices.Contains(all, Ref{resource, name, true}) {
				all = append(all, Ref{Resource: resource, Name: name})
			}
			return true
		}
	}
	podutil.VisitPodConfigmapNames(pod, required("configmaps"))
	podutil.VisitPodSecretNames(pod, required("secrets"))
	for i := range spec.Volumes {
		if c := spec.Volumes[i].PersistentVolumeClaim; c != nil {
			all = append(all, Ref{Resource: "persistentvolumeclaims", Name: c.ClaimName})
		}
	}
	return append(all, Ref{Resource: "serviceaccounts", Name: cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount)})
}

// optional returns the objects without which pods start.
func optional(spec *corev1.PodSpec) (refs []Ref) {
	needed := map[Ref]bool{}
	add := func(resource, name string, is *bool) {
		r := Ref{resource, name, true}
		if is == nil || !*is {
			needed[r] = true
		}
		refs = append(refs, r)
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.ConfigMap != nil {
			add("configmaps", v.ConfigMap.Name, v.ConfigMap.Optional)
		}
		if v.Secret != nil {
			add("secrets", v.Secret.SecretName, v.Secret.Optional)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add("configmaps", s.ConfigMap.Name, s.ConfigMap.Optional)
			}
			if s.Secret != nil {
				add("secrets", s.Secret.Name, s.Secret.Optional)
			}
		}
	}
	podutil.VisitContainers(spec, podutil.AllContainers, func(c *corev1.Container, _ podutil.ContainerType) bool {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				add("configmaps", from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				add("secrets", from.SecretRef.Name, from.SecretRef.Optional)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				add("configmaps", e.ValueFrom.ConfigMapKeyRef.Name, e.ValueFrom.ConfigMapKeyRef.Optional)
			}
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				add("secrets", e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Optional)
			}
		}
		return true
	})
	return slices.DeleteFunc(refs, func(r Ref) bool { return needed[r] })
}
