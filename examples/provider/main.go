// Command provider offers an API to other workspaces: an authority that issues certificates.
// A tenant creates a Certificate with a certificate request; the provider writes the
// certificate to its status, and renews it in time. One process serves all tenants.
//
// The same controller also runs against one ordinary cluster, with -export="".
package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/unforked/kcp/provider"
)

// An issuer is the controller.
type issuer struct {
	mgr       mcmanager.Manager
	authority *authority
}

// Reconcile implements reconcile.TypedReconciler.
func (i *issuer) Reconcile(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
	tenant, err := i.mgr.GetCluster(ctx, req.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	c := tenant.GetClient()
	var cert Certificate
	if err := c.Get(ctx, req.NamespacedName, &cert); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	next, _ := cert.DeepCopyObject().(*Certificate)
	owner := cmp.Or(string(req.ClusterName), "local") // an ordinary cluster has no name
	name := fmt.Sprintf("%s.%s.%s.example.com", req.Name, req.Namespace, owner)
	renewal, err := i.decide(next, name, time.Now())
	if err != nil {
		return ctrl.Result{}, err
	}
	if !reflect.DeepEqual(cert.Status, next.Status) {
		err = c.Status().Patch(ctx, next, client.MergeFrom(&cert))
	}
	return ctrl.Result{RequeueAfter: renewal}, client.IgnoreNotFound(err)
}

// decide sets the status of a Certificate. It returns when to look at it again, 0 for never.
func (i *issuer) decide(c *Certificate, name string, now time.Time) (time.Duration, error) {
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "InvalidRequest", ObservedGeneration: c.Generation}
	key, err := parse(c.Spec.Request)
	if err != nil {
		ready.Message = err.Error()
		meta.SetStatusCondition(&c.Status.Conditions, ready)
		return 0, nil // until the tenant changes it
	}
	cert := i.authority.issued(c.Status.Certificate, key, name)
	if cert == nil || !now.Before(renewal(cert)) || cert.NotAfter.After(now.AddDate(0, 0, c.Spec.Days)) {
		if cert, err = i.authority.issue(key, name, c.Spec.Days); err != nil {
			return 0, err
		}
		c.Status.Certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	c.Status.Authority = i.authority.pem
	c.Status.NotAfter = &metav1.Time{Time: cert.NotAfter.Local()}
	ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, "Issued", "for "+name
	meta.SetStatusCondition(&c.Status.Conditions, ready)
	return renewal(cert).Sub(now), nil
}

// renewal returns when a certificate is to be renewed: after two thirds of its time.
func renewal(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

// setup adds the controller to a manager.
func setup(mgr mcmanager.Manager, a *authority) error {
	return provider.For(mgr, &Certificate{}).
		WithOptions(mccontroller.Options{
			NewQueue:                provider.NewQueue,
			MaxConcurrentReconciles: 4,
			SkipNameValidation:      mgr.GetControllerOptions().SkipNameValidation, // of the manager: it is not the default
		}).
		Complete(&issuer{mgr, a})
}

// manager returns a manager of all tenants of an export. Without an export, it returns a
// manager of one ordinary cluster.
func manager(cfg *rest.Config, export string, replicas *provider.Replicas, o ctrl.Options) (mcmanager.Manager, error) {
	o.Scheme = newScheme()
	if export == "" {
		return mcmanager.New(cfg, nil, o)
	}
	p, err := provider.New(cfg, provider.Options{Export: export, Scheme: o.Scheme, Replicas: replicas})
	if err != nil {
		return nil, err
	}
	return mcmanager.New(cfg, p, o)
}

func main() {
	export := flag.String("export", "certificates", "name of the APIExport; empty for one ordinary cluster")
	file := flag.String("authority", "authority.pem", "file with the key and certificate of the authority; created if missing")
	shared := flag.Bool("replicas", false, "share the tenants with other processes that have this flag and the same authority")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	var replicas *provider.Replicas
	if *shared {
		replicas = &provider.Replicas{}
	}
	a, err := loadAuthority(*file)
	if err != nil {
		log.Fatal(err)
	}
	mgr, err := manager(ctrl.GetConfigOrDie(), *export, replicas, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err == nil {
		err = setup(mgr, a)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		log.Fatal(err)
	}
}
