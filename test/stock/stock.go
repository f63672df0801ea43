// Package stock runs an unmodified Kubernetes control plane for comparison. It hides the
// keys, flags and processes of the program in test/tools/cmd/kube, which it configures
// as kubeadm does.
package stock

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The bearer tokens of a control plane.
const (
	UserToken        = "user-token"     // of "user", whom RBAC grants everything
	OrdinaryToken    = "ordinary-token" // of "ordinary", whom RBAC grants what everybody has
	AdminToken       = "admin-token"    // of "admin" in system:masters
	controllersToken = "controllers-token"

	// Tokens is the CSV file of the first three tokens for kube-apiserver.
	Tokens = UserToken + `,user,1` + "\n" +
		OrdinaryToken + `,ordinary,4` + "\n" +
		AdminToken + `,admin,2,"system:masters"` + "\n"
)

// ControlPlane is a stock control plane. It has TLS and client certificates between API
// server and etcd, Node and RBAC authorization, and fsync.
type ControlPlane struct {
	Binary string // etcd, kube-apiserver and kube-controller-manager in one
	Dir    string // for keys, data and logs; it must exist

	Etcd, API, Controllers *Process      // nil until started
	Took                   time.Duration // from exec to ready, of etcd and the API server together

	ports []int
	node  string // that pods are bound to; empty if there is none
}

// Start starts etcd and the API server and returns when they are ready. The caller must
// call Stop, also after an error.
func (c *ControlPlane) Start(ctx context.Context) error {
	var err error
	if c.ports, err = FreePorts(4); err != nil {
		return err
	}
	if err := writePKI(c.Dir); err != nil {
		return fmt.Errorf("keys of the stock server: %w", err)
	}
	tokens := Tokens + controllersToken + ",system:kube-controller-manager,3\n"
	if err := os.WriteFile(c.file("tokens.csv"), []byte(tokens), 0o600); err != nil {
		return err
	}
	began := time.Now()
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	c.Took = time.Since(began)
	return c.grant(ctx)
}

// Stop ends all processes, in reverse order of their start, and waits for them.
func (c *ControlPlane) Stop() {
	for _, p := range []*Process{c.Controllers, c.API, c.Etcd} {
		if p != nil {
			p.Stop()
		}
	}
}

// Kill ends all processes with SIGKILL, as when a machine loses power. They have no time to finish anything.
func (c *ControlPlane) Kill() {
	for _, p := range []*Process{c.Etcd, c.API, c.Controllers} { // what the others do then is not stored
		p.Kill()
	}
}

// Restart starts etcd, the API server and the controller manager again, on the data and the ports that they had, and
// returns when the API server is ready.
func (c *ControlPlane) Restart(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	return c.StartControllers()
}

// Config returns a client configuration for the API server with a bearer token.
func (c *ControlPlane) Config(token string) *rest.Config {
	return &rest.Config{Host: local(c.ports[1]), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.file("ca.crt")}}
}

// EtcdConfig returns a client configuration for etcd's HTTP endpoints.
func (c *ControlPlane) EtcdConfig() *rest.Config {
	return &rest.Config{Host: local(c.ports[0]), TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.file("ca.crt"), CertFile: c.file("server.crt"), KeyFile: c.file("server.key")}}
}

func (c *ControlPlane) file(name string) string { return filepath.Join(c.Dir, name) }

func local(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

func (c *ControlPlane) startEtcd(ctx context.Context) (err error) {
	at, peer := local(c.ports[0]), fmt.Sprintf("http://127.0.0.1:%d", c.ports[2])
	c.Etcd, err = Launch(c.Dir, "etcd", c.Binary, "etcd", "--name=stock", "--data-dir="+c.file("etcd-data"), "--log-level=warn",
		"--listen-client-urls="+at, "--advertise-client-urls="+at,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=stock="+peer,
		"--client-cert-auth", "--trusted-ca-file="+c.file("ca.crt"),
		"--cert-file="+c.file("server.crt"), "--key-file="+c.file("server.key"))
	if err != nil {
		return err
	}
	tls, err := rest.TLSConfigFor(c.EtcdConfig())
	if err != nil {
		return err
	}
	return ready(ctx, at, c.Etcd, tls)
}

func (c *ControlPlane) startAPI(ctx context.Context) (err error) {
	c.API, err = Launch(c.Dir, "kube-apiserver", c.Binary, "kube-apiserver",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports[1]),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", // the API server refuses loopback addresses as endpoints
		"--tls-cert-file="+c.file("server.crt"), "--tls-private-key-file="+c.file("server.key"), "--client-ca-file="+c.file("ca.crt"),
		"--token-auth-file="+c.file("tokens.csv"),
		"--etcd-servers="+local(c.ports[0]), "--etcd-cafile="+c.file("ca.crt"),
		"--etcd-certfile="+c.file("server.crt"), "--etcd-keyfile="+c.file("server.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.file("sa.pub"), "--service-account-signing-key-file="+c.file("sa.key"))
	if err != nil {
		return err
	}
	return Ready(ctx, local(c.ports[1]), c.API)
}

// grant binds the user to cluster-admin, as a workspace does for its creator. A member of
// system:masters would bypass RBAC.
func (c *ControlPlane) grant(ctx context.Context) error {
	config := c.Config(AdminToken)
	config.GroupVersion, config.NegotiatedSerializer = &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	h, err := rest.RESTClientFor(config)
	if err != nil {
		return err
	}
	body, err := json.Marshal(&rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "user"}},
	})
	if err != nil {
		return err
	}
	return h.Post().RequestURI("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// StartControllers starts the controller manager. It raises the default limit of 20
// requests per second, which would otherwise determine the figures.
func (c *ControlPlane) StartControllers() error {
	kubeconfig := c.file("controllers.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "stock",
		Contexts:       map[string]*clientcmdapi.Context{"stock": {Cluster: "stock", AuthInfo: "stock"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"stock": {Server: local(c.ports[1]), CertificateAuthority: c.file("ca.crt")}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"stock": {Token: controllersToken}},
	}, kubeconfig)
	if err != nil {
		return err
	}
	c.Controllers, err = Launch(c.Dir, "kube-controller-manager", c.Binary, "kube-controller-manager",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports[3]),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--use-service-account-credentials", "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--cluster-signing-cert-file="+c.file("ca.crt"), "--cluster-signing-key-file="+c.file("ca.key"),
		"--root-ca-file="+c.file("ca.crt"), "--service-account-private-key-file="+c.file("sa.key"))
	return err
}

// Ready polls /readyz, without credentials, until it answers 200.
func Ready(ctx context.Context, url string, p *Process) error {
	return ready(ctx, url, p, &tls.Config{InsecureSkipVerify: true}) // kcp may not have made its certificate yet
}

func ready(ctx context.Context, url string, p *Process, config *tls.Config) error {
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer t.CloseIdleConnections()
	h := &http.Client{Transport: t, Timeout: 10 * time.Second}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not ready after two minutes"))
	defer cancel()
	return Poll(ctx, 5*time.Millisecond, p, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return false, err
		}
		res, err := h.Do(req)
		if err != nil {
			return false, nil // not listening yet
		}
		return res.StatusCode == http.StatusOK, res.Body.Close()
	})
}
