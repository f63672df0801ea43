package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cluster"
)

// bootstrapLife is how long the token of a bootstrap is valid.
const bootstrapLife = time.Hour

// registerAgent registers a physical cluster in pull mode. It prints what the physical cluster needs,
// or applies it there.
func registerAgent(ctx context.Context, a *command.App, r registration) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	if _, err := bindTo(ctx, a, srv, sharing.NewBinding{Path: cluster.Path(cluster.Root), Export: workload.Export, Name: workload.Export, Timeout: r.timeout}); err != nil {
		return err
	}
	if err := offerCluster(ctx, a, srv); err != nil {
		return err
	}
	targets, err := srv.Objects(here, workload.GroupVersion, "synctargets")
	if err != nil {
		return err
	}
	o, err := targets.Create(ctx, r.target(), metav1.CreateOptions{FieldManager: remote.UserAgent})
	existed := apierrors.IsAlreadyExists(err)
	if existed {
		o, err = targets.Get(ctx, r.name, metav1.GetOptions{})
	}
	if err != nil {
		return remote.About(here, "cannot register the physical cluster %q in workspace %q: %w", r.name, here, err)
	}
	bootstrap, err := bootstrapKubeconfig(ctx, srv, o, r.server)
	if err != nil {
		return remote.About(here, "cannot create the credentials of the agent in workspace %q: %w", here, err)
	}
	manifest, err := agentManifest(o, bootstrap, r.image)
	if err != nil {
		return err
	}
	if r.output == "" {
		if err := applyTo(ctx, r.config, manifest); err != nil {
			return fmt.Errorf("cannot install the agent in the physical cluster: %w", err)
		}
		a.Print.Note("Agent %q installed in namespace %q of the physical cluster.", r.image, manifest[0].GetName())
	}
	if existed { // after its agent is there
		if o, err = r.relabel(ctx, srv); err != nil {
			return remote.About(here, "cannot change the SyncTarget %q: %w", r.name, err)
		}
	}
	if r.output != "" {
		return a.Print.Result(r.output, listOf(manifest))
	}
	return awaitTarget(ctx, a, srv, o, r.timeout)
}

// awaitTarget waits until a physical cluster is ready, and says how to use it.
func awaitTarget(ctx context.Context, a *command.App, srv *remote.Server, o *unstructured.Unstructured, timeout time.Duration) error {
	targets, err := srv.Objects(srv.Base.Path, workload.GroupVersion, "synctargets")
	if err != nil {
		return err
	}
	t, err := targetOf(o)
	if err != nil {
		return err
	}
	if t, err = awaitTargetReady(ctx, a, targets, t, timeout); err != nil {
		return err
	}
	a.Print.Say("Physical cluster %q (%s) is ready.", t.Name, t.Status.Version)
	a.Print.Note("To use it from another workspace, run there: kubectl kcp bind compute :%s", srv.Base.Path)
	return nil
}

func listOf(objects []*unstructured.Unstructured) *unstructured.Unstructured {
	items := make([]any, 0, len(objects))
	for _, o := range objects {
		items = append(items, o.Object)
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "List", "items": items}}
}

// bootstrapKubeconfig returns a kubeconfig for the first request of an agent: a token that may create the
// certificate of this agent, and nothing else.
func bootstrapKubeconfig(ctx context.Context, s *remote.Server, target *unstructured.Unstructured, url string) ([]byte, error) {
	clients, err := kubernetes.NewForConfigAndClient(s.In(s.Base.Path), s.Client)
	if err != nil {
		return nil, err
	}
	owner := []metav1.OwnerReference{{APIVersion: workload.GroupVersion.String(), Kind: "SyncTarget", Name: target.GetName(), UID: target.GetUID()}}
	name := "synctarget-" + target.GetName()
	meta := metav1.ObjectMeta{Name: "kcp-" + name + "-" + workload.CertificateSubresource, OwnerReferences: owner}
	create := metav1.CreateOptions{FieldManager: remote.UserAgent}
	_, err = clients.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretsNamespace}}, create)
	if err = ignoreExisting(err); err == nil { // tokens of an earlier manifest end with the service account
		err = clients.CoreV1().ServiceAccounts(secretsNamespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err == nil || apierrors.IsNotFound(err) {
		_, err = clients.CoreV1().ServiceAccounts(secretsNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owner}}, create)
	}
	if err = ignoreExisting(err); err == nil {
		_, err = clients.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"create"}, APIGroups: []string{workload.GroupVersion.Group}, Resources: []string{"synctargets/" + workload.CertificateSubresource}, ResourceNames: []string{target.GetName()}}}}, create)
	}
	if err = ignoreExisting(err); err == nil {
		_, err = clients.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: secretsNamespace, Name: name}}}, create)
	}
	if err = ignoreExisting(err); err != nil {
		return nil, err
	}
	seconds := int64(bootstrapLife / time.Second)
	token, err := clients.CoreV1().ServiceAccounts(secretsNamespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, create)
	if err != nil {
		return nil, err
	}
	return agentKubeconfig(s, target, url, token.Status.Token)
}

func ignoreExisting(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// agentKubeconfig returns a kubeconfig for the view of a SyncTarget.
func agentKubeconfig(s *remote.Server, target *unstructured.Unstructured, url, token string) ([]byte, error) {
	if url == "" {
		url, _, _ = strings.Cut(s.Base.At(s.Base.Path).URL(), "/clusters/")
	}
	view := workload.SyncerPath(string(cluster.Of(target)), target.GetName(), string(target.GetUID()))
	ca := s.Config.CAData
	if len(ca) == 0 && s.Config.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(s.Config.CAFile); err != nil {
			return nil, err
		}
	}
	return clientcmd.Write(clientcmdapi.Config{CurrentContext: "kcp",
		Contexts:  map[string]*clientcmdapi.Context{"kcp": {Cluster: "kcp", AuthInfo: "bootstrap"}},
		Clusters:  map[string]*clientcmdapi.Cluster{"kcp": {Server: strings.TrimSuffix(url, "/") + view, CertificateAuthorityData: ca, TLSServerName: s.Config.ServerName}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"bootstrap": {Token: token}}})
}

// agentNamespace returns the namespace of the agent in the physical cluster. Another SyncTarget has
// another one.
func agentNamespace(target metav1.Object) string {
	return "kcp-agent-" + strings.ReplaceAll(string(target.GetUID()), "-", "")[:12]
}

// applyTo applies objects to a physical cluster.
func applyTo(ctx context.Context, kubeconfig []byte, objects []*unstructured.Unstructured) error {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	all, err := dynamic.NewForConfig(rest.AddUserAgent(config, remote.UserAgent))
	if err != nil {
		return err
	}
	for _, o := range objects {
		of := all.Resource(resourceOfObject(o))
		_, err := of.Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: remote.UserAgent, Force: true})
		if err != nil {
			return fmt.Errorf("%s %q: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// readAgent checks the arguments of pull mode.
func (r *registration) readAgent() error {
	switch {
	case r.image == "":
		return errors.New("the image of the agent is missing; add --image IMAGE, an image with the program kcp")
	case r.kubeconfig == "" && r.output == "":
		return errors.New("add --kubeconfig FILE to install the agent in the physical cluster, or -o yaml to print what it needs")
	case r.kubeconfig != "" && r.output != "":
		return errors.New("with -o, the manifest is for another program to apply; leave out --kubeconfig")
	}
	return nil
}
