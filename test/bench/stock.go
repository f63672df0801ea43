package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// stock is an unmodified Kubernetes control plane, set up as kubeadm does
// where that costs anything: TLS and client certificates between API server
// and etcd, Node and RBAC authorization, fsync on.
type stock struct {
	binary string // etcd, kube-apiserver and kube-controller-manager in one
}

// The users of a stock server, with bearer tokens as kcp's admins have.
const (
	userToken        = "user-token"
	adminToken       = "admin-token"
	controllersToken = "controllers-token"
	tokens           = userToken + `,user,1` + "\n" +
		adminToken + `,admin,2,"system:masters"` + "\n" +
		controllersToken + `,system:kube-controller-manager,3` + "\n"
)

func (k *stock) name() string { return "stock" }

// running is one stock server while it is being put together.
type running struct {
	*server
	binary                   string
	etcd, peer, api, manager int // ports
}

func (k *stock) start(ctx context.Context, dir string, controllers bool) (*server, error) {
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	if err := writePKI(dir); err != nil {
		return nil, fmt.Errorf("keys of the stock server: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens), 0o600); err != nil {
		return nil, err
	}
	r := &running{&server{subject: k.name(), dir: dir}, k.binary, ports[0], ports[1], ports[2], ports[3]}
	err = r.startStore(ctx)
	if err == nil {
		err = r.startAPI(ctx)
	}
	if err == nil && controllers {
		err = r.startControllers(ctx)
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	return r.server, nil
}

func (r *running) file(name string) string { return filepath.Join(r.dir, name) }

func local(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

func (r *running) startStore(ctx context.Context) error {
	r.began = time.Now()
	peer := fmt.Sprintf("http://127.0.0.1:%d", r.peer)
	p, err := launch(r.dir, "etcd", r.binary, "etcd", "--name=bench", "--data-dir="+r.file("etcd-data"), "--log-level=warn",
		"--listen-client-urls="+local(r.etcd), "--advertise-client-urls="+local(r.etcd),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=bench="+peer,
		"--client-cert-auth", "--trusted-ca-file="+r.file("ca.crt"),
		"--cert-file="+r.file("server.crt"), "--key-file="+r.file("server.key"))
	if err != nil {
		return err
	}
	r.measured = append(r.measured, p)
	config := &rest.Config{Host: local(r.etcd), TLSClientConfig: rest.TLSClientConfig{
		CAFile: r.file("ca.crt"), CertFile: r.file("server.crt"), KeyFile: r.file("server.key")}}
	r.metrics = append(r.metrics, config)
	c, err := newClient(config)
	if err != nil {
		return err
	}
	defer c.close()
	return poll(ctx, 5*time.Millisecond, p, func() (bool, error) {
		_, err := c.call(ctx, "GET", "/readyz", "*/*", nil)
		return err == nil, nil // it refuses connections until it listens
	})
}

func (r *running) startAPI(ctx context.Context) error {
	p, err := launch(r.dir, "kube-apiserver", r.binary, "kube-apiserver",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", r.api),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", // a loopback address is no endpoint
		"--tls-cert-file="+r.file("server.crt"), "--tls-private-key-file="+r.file("server.key"),
		"--token-auth-file="+r.file("tokens.csv"),
		"--etcd-servers="+local(r.etcd), "--etcd-cafile="+r.file("ca.crt"),
		"--etcd-certfile="+r.file("server.crt"), "--etcd-keyfile="+r.file("server.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+r.file("sa.pub"), "--service-account-signing-key-file="+r.file("sa.key"))
	if err != nil {
		return err
	}
	r.measured = append(r.measured, p)
	if err := r.ready(ctx, local(r.api), p); err != nil {
		return err
	}
	r.user = r.config(userToken)
	r.metrics = append(r.metrics, r.config(adminToken))
	return r.grant(ctx)
}

func (r *running) config(token string) *rest.Config {
	return &rest.Config{Host: local(r.api), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: r.file("ca.crt")}}
}

// grant lets RBAC allow the user everything, as a workspace does for the one
// who made it: a member of system:masters would not be checked at all.
func (r *running) grant(ctx context.Context) error {
	c, err := newClient(r.config(adminToken))
	if err != nil {
		return err
	}
	defer c.close()
	return c.post(ctx, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "user"}},
	})
}

// startControllers runs the controller manager and waits until it has made the
// first service account. Its request rate is not held to the default 20/s, as
// that, and not the work, would then be what is measured.
func (r *running) startControllers(ctx context.Context) error {
	kubeconfig := r.file("controllers.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "bench",
		Contexts:       map[string]*clientcmdapi.Context{"bench": {Cluster: "bench", AuthInfo: "bench"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"bench": {Server: local(r.api), CertificateAuthority: r.file("ca.crt")}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"bench": {Token: controllersToken}},
	}, kubeconfig)
	if err != nil {
		return err
	}
	p, err := launch(r.dir, "kube-controller-manager", r.binary, "kube-controller-manager",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", r.manager),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--use-service-account-credentials", "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--root-ca-file="+r.file("ca.crt"), "--service-account-private-key-file="+r.file("sa.key"))
	if err != nil {
		return err
	}
	r.beside = append(r.beside, p)
	accounts, err := watchAccounts(ctx, r.user)
	if err != nil {
		return err
	}
	r.closers = append(r.closers, accounts.close)
	r.newTenant = func(ctx context.Context, c *client, name string) (tenant, error) {
		return newNamespace(ctx, c, accounts, name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("no service account after two minutes"))
	defer cancel()
	select {
	case <-p.done:
		return p.ended()
	case err := <-accounts.wait("default"):
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.name, context.Cause(ctx))
	}
}

// newNamespace makes a namespace and returns when its default service account
// exists: a pod could be made in it from then on.
func newNamespace(ctx context.Context, c *client, accounts *accounts, name string) (tenant, error) {
	seen := accounts.wait(name)
	err := c.post(ctx, "/api/v1/namespaces", &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	})
	if err != nil {
		return tenant{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no default service account after a minute"))
	defer cancel()
	select {
	case err = <-seen:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return tenant{}, fmt.Errorf("namespace %s: %w", name, err)
	}
	path := "/api/v1/namespaces/" + name + "/configmaps"
	return tenant{configMaps: path, all: path}, nil
}
