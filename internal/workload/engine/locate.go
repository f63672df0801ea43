package engine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// Physical returns the namespace of the physical cluster that holds the objects of l.
func (l Locator) Physical() string { return l.namespace() }

// Made reports whether the engine made an object of a physical cluster for l.
func (l Locator) Made(o metav1.Object) bool {
	of, ok := locatorOf(o)
	return ok && of == l && o.GetLabels()[workload.OwnerLabel] == l.Target
}
