// Command controller is an ordinary controller-runtime controller: it labels each config map
// with the number of its keys. It has no code for logical clusters; its test runs it in
// one.
package main

import (
	"context"
	"log"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const label = "example.com/keys"

// counter labels config maps.
type counter struct{ client.Client }

// Reconcile implements reconcile.Reconciler.
func (c counter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cm corev1.ConfigMap
	if err := c.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	want := strconv.Itoa(len(cm.Data))
	if cm.Labels[label] == want {
		return ctrl.Result{}, nil
	}
	before := cm.DeepCopy()
	if cm.Labels == nil {
		cm.Labels = map[string]string{}
	}
	cm.Labels[label] = want
	return ctrl.Result{}, c.Patch(ctx, &cm, client.MergeFrom(before))
}

// setup adds the controller to a manager.
func setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(counter{mgr.GetClient()})
}

func main() {
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{})
	if err == nil {
		err = setup(mgr)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		log.Fatal(err)
	}
}
