package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cluster"
)

func bindingVersion() schema.GroupVersion { return apis.GroupVersion }

// secretsNamespace has the Secrets with the kubeconfigs of physical clusters.
const secretsNamespace = workload.TargetsNamespace

// A registration holds the arguments of "workload sync".
type registration struct {
	name, kubeconfig, context string
	labels                    string
	timeout                   time.Duration
	output                    output.Format
	mode, image, server       string
	dry                       rehearsal

	config []byte            // the kubeconfig without files, for one context
	label  map[string]string // parsed labels
}

func syncCommand(a *command.App) *cobra.Command {
	var r registration
	cmd := &cobra.Command{
		Use:   "sync NAME [--kubeconfig FILE]",
		Short: "Register a physical cluster in the current workspace",
		Long: `Register a physical cluster in the current workspace, which becomes a compute workspace, and wait until the cluster is ready. The command stores the kubeconfig of the physical cluster in a Secret of the workspace. The server connects to the cluster with it, and applies the workloads that other workspaces run here.

The first time, the command also binds the API of physical clusters and creates the Location "` + defaultName + `", which offers all physical clusters. The server creates the export "` + workload.KubernetesExport + `", which other workspaces bind with kubectl kcp bind compute.

With --mode Pull, nothing needs to reach the physical cluster: an agent in it calls the server. The command installs the agent with the kubeconfig, which is not stored. With -o, it prints what the physical cluster needs instead, with a token for the agent that is valid for an hour. To change the mode of a physical cluster, run the command again with the other one.

In mode Push, the kubeconfig must have a token or a client certificate. Its user needs rights for namespaces and for the kinds of the workloads. To change credentials, run the command again. The server reaches public addresses only, unless its operator allows others.`,
		Example: `  # Register a physical cluster with labels that Locations can select
  kubectl kcp workload sync east --kubeconfig east.kubeconfig --labels region=east

  # Install an agent, which calls this server
  kubectl kcp workload sync west --mode Pull --image registry.example/kcp:v1 --kubeconfig west.kubeconfig

  # Print the objects instead of creating them
  kubectl kcp workload sync east --kubeconfig east.kubeconfig -o yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "Kubeconfig of the physical cluster. The kubeconfig of this server is that of the environment.")
	f.StringVar(&r.context, "context", "", "Context of the kubeconfig to use. (default its current context)")
	f.StringVar(&r.labels, "labels", "", "Labels of the physical cluster, as in region=east,tier=gold.")
	f.DurationVar(&r.timeout, "timeout", time.Minute, "Timeout for the physical cluster to become ready.")
	f.StringVar(&r.mode, "mode", string(workload.PushMode), "Which side opens the connection: Push, the server calls the physical cluster, or Pull, an agent in the physical cluster calls the server.")
	f.StringVar(&r.image, "image", "", "Image of the agent, in mode Pull. It has the program kcp.")
	f.StringVar(&r.server, "server-url", "", "URL of this server for the agent, in mode Pull. (default that of the current kubeconfig)")
	output.Flag(cmd, &r.output, []output.Format{output.JSON, output.YAML})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r.name = args[0]
		if err := r.read(); err != nil {
			return err
		}
		if r.dry.active() && (r.output == "" || r.pull()) {
			return r.rehearse(a)
		}
		if r.pull() {
			return registerAgent(cmd.Context(), a, r)
		}
		if r.output != "" {
			return a.Print.Result(r.output, r.manifest())
		}
		return registerTarget(cmd.Context(), a, r)
	}
	r.dry.flag(cmd, byClient)
	return cmd
}

// rehearse says what the registration would create.
func (r *registration) rehearse(a *command.App) error {
	if r.output != "" {
		return errors.New("with --mode Pull and -o, the manifest has a token for the agent of a SyncTarget that exists; leave out --dry-run or -o")
	}
	text := fmt.Sprintf("SyncTarget %q is created in the current workspace, and the Secret %q with the kubeconfig in its namespace %q", r.name, r.secretName(), secretsNamespace)
	if r.pull() {
		text = fmt.Sprintf("SyncTarget %q is created in the current workspace, and its agent is installed in the physical cluster", r.name)
	}
	a.Print.Say("%s%s.", text, r.dry.suffix())
	return nil
}

// read checks the arguments and reads the kubeconfig.
func (r *registration) read() error {
	if wrong := validation.IsDNS1123Label(r.name); len(wrong) > 0 {
		return fmt.Errorf("invalid name %q: %s", r.name, wrong[0])
	}
	var err error
	switch {
	case r.pull():
		err = r.readAgent()
	case !strings.EqualFold(r.mode, string(workload.PushMode)):
		err = fmt.Errorf("unknown --mode %q; it is Push or Pull", r.mode)
	case r.image != "" || r.server != "":
		err = errors.New("--image and --server-url are for --mode Pull")
	case r.kubeconfig == "":
		err = errors.New("the kubeconfig of the physical cluster is missing; add --kubeconfig FILE")
	}
	if err != nil {
		return err
	}
	if r.label, err = labels.ConvertSelectorToLabelsMap(r.labels); err != nil {
		return fmt.Errorf("invalid --labels %q: %w; write them as in region=east,tier=gold", r.labels, err)
	}
	if r.kubeconfig == "" {
		return nil // the manifest is printed
	}
	return r.readKubeconfig()
}

func (r *registration) pull() bool { return strings.EqualFold(r.mode, string(workload.PullMode)) }

// readKubeconfig reads the kubeconfig of the physical cluster, for one context and without files.
func (r *registration) readKubeconfig() error {
	config, err := clientcmd.LoadFromFile(r.kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot read the kubeconfig of the physical cluster: %w", err)
	}
	if r.context != "" {
		config.CurrentContext = r.context
	}
	if config.Contexts[config.CurrentContext] == nil {
		return fmt.Errorf("kubeconfig %s has no context %q; choose one with --context", r.kubeconfig, config.CurrentContext)
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return fmt.Errorf("cannot use kubeconfig %s: %w", r.kubeconfig, err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return fmt.Errorf("cannot use kubeconfig %s: %w", r.kubeconfig, err)
	}
	for _, who := range config.AuthInfos {
		if !r.pull() && (who.Exec != nil || who.AuthProvider != nil) {
			return fmt.Errorf("kubeconfig %s runs a program for credentials, which the server cannot; use the token of a service account or a client certificate", r.kubeconfig)
		}
	}
	r.config, err = clientcmd.Write(*config)
	return err
}

func (r *registration) secretName() string { return "synctarget-" + r.name }

func (r *registration) secret() *unstructured.Unstructured {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: secretsNamespace, Name: r.secretName()},
		Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{workload.KubeconfigKey: r.config}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s)
	if err != nil {
		panic(err) // a bug: it has no type that cannot be converted
	}
	return &unstructured.Unstructured{Object: content}
}

func (r *registration) target() *unstructured.Unstructured {
	metadata := map[string]any{"name": r.name}
	if len(r.label) > 0 {
		all := map[string]any{}
		for k, v := range r.label {
			all[k] = v
		}
		metadata["labels"] = all
	}
	spec := map[string]any{"mode": string(workload.PullMode)}
	if !r.pull() {
		spec = map[string]any{"mode": string(workload.PushMode), "push": map[string]any{
			"kubeconfigSecretRef": map[string]any{"namespace": secretsNamespace, "name": r.secretName()}}}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": workload.GroupVersion.String(), "kind": "SyncTarget", "metadata": metadata, "spec": spec}}
}

func namespaceObject() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": secretsNamespace}}}
}

func (r *registration) manifest() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "List",
		"items": []any{namespaceObject().Object, r.secret().Object, r.target().Object}}}
}

// registerTarget creates everything that a physical cluster needs.
func registerTarget(ctx context.Context, a *command.App, r registration) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	root := cluster.Path(cluster.Root)
	if _, err := bindTo(ctx, a, srv, sharing.NewBinding{Path: root, Export: workload.Export, Name: workload.Export, Timeout: r.timeout}); err != nil {
		return err
	}
	if err := storeKubeconfig(ctx, a, srv, r); err != nil {
		return err
	}
	targets, err := srv.Objects(here, workload.GroupVersion, "synctargets")
	if err != nil {
		return err
	}
	o, err := targets.Create(ctx, r.target(), metav1.CreateOptions{FieldManager: remote.UserAgent})
	if apierrors.IsAlreadyExists(err) {
		o, err = r.relabel(ctx, srv)
		a.Print.Note("SyncTarget %q exists already; its credentials and labels are those of the command now.", r.name)
	} else if err == nil {
		a.Print.Note("SyncTarget %q created.", r.name)
	}
	if err != nil {
		return remote.About(here, "cannot register the physical cluster %q in workspace %q: %w", r.name, here, err)
	}
	if err := offerCluster(ctx, a, srv); err != nil {
		return err
	}
	return awaitTarget(ctx, a, srv, o, r.timeout)
}

// relabel sets the labels of a SyncTarget that exists.
func (r *registration) relabel(ctx context.Context, srv *remote.Server) (*unstructured.Unstructured, error) {
	targets, err := srv.Objects(srv.Base.Path, workload.GroupVersion, "synctargets")
	if err != nil {
		return nil, err
	}
	o, err := targets.Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	all := o.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, r.label)
	o.SetLabels(all)
	o.Object["spec"] = mergedSpec(o, r.target())
	return targets.Update(ctx, o, metav1.UpdateOptions{FieldManager: remote.UserAgent})
}

// mergedSpec returns the spec of a SyncTarget with the push configuration of another one.
func mergedSpec(have, want *unstructured.Unstructured) map[string]any {
	spec, ok := have.Object["spec"].(map[string]any)
	if !ok {
		spec = map[string]any{}
	}
	from, _ := want.Object["spec"].(map[string]any) // target makes one
	maps.Copy(spec, from)
	return spec
}

// storeKubeconfig stores the kubeconfig in the workspace. It refuses one of another cluster than the
// one that is stored.
func storeKubeconfig(ctx context.Context, a *command.App, srv *remote.Server, r registration) error {
	here := srv.Base.Path
	spaces, err := srv.Objects(here, corev1.SchemeGroupVersion, "namespaces")
	if err != nil {
		return err
	}
	if _, err := spaces.Create(ctx, namespaceObject(), metav1.CreateOptions{FieldManager: remote.UserAgent}); err != nil && !apierrors.IsAlreadyExists(err) {
		return remote.About(here, "cannot create namespace %q in workspace %q: %w", secretsNamespace, here, err)
	}
	all, err := srv.Resource(here, corev1.SchemeGroupVersion.WithResource("secrets"))
	if err != nil {
		return err
	}
	secrets := all.Namespace(secretsNamespace)
	_, err = secrets.Create(ctx, r.secret(), metav1.CreateOptions{FieldManager: remote.UserAgent})
	if err == nil {
		a.Print.Note("Secret %q with the kubeconfig created in namespace %q.", r.secretName(), secretsNamespace)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return remote.About(here, "cannot store the kubeconfig in workspace %q: %w", here, err)
	}
	have, err := secrets.Get(ctx, r.secretName(), metav1.GetOptions{})
	if err != nil {
		return remote.About(here, "cannot read the stored kubeconfig: %w", err)
	}
	var old corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, &old); err != nil {
		return err
	}
	was, is := serverOf(old.Data[workload.KubeconfigKey]), serverOf(r.config)
	if was != "" && was != is {
		return fmt.Errorf("the name %q is that of another physical cluster, at %s; choose another name, or remove that one with: kubectl kcp workload unsync %s", r.name, was, r.name)
	}
	if bytes.Equal(old.Data[workload.KubeconfigKey], r.config) {
		return nil
	}
	if err := r.refused(ctx); err != nil {
		return err
	}
	next := r.secret()
	next.SetResourceVersion(have.GetResourceVersion())
	_, err = secrets.Update(ctx, next, metav1.UpdateOptions{FieldManager: remote.UserAgent})
	return err
}

// refused returns an error if the physical cluster refuses the credentials of the kubeconfig: they would
// replace others that it accepts. Only the server has to reach the cluster, so no answer is no refusal.
func (r *registration) refused(ctx context.Context) error {
	config, err := clientcmd.RESTConfigFromKubeConfig(r.config)
	if err != nil {
		return fmt.Errorf("cannot use kubeconfig %s: %w", r.kubeconfig, err)
	}
	config.Timeout = 5 * time.Second
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot use kubeconfig %s: %w", r.kubeconfig, err)
	}
	_, err = clients.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the physical cluster does not accept the credentials in kubeconfig %s; they may have expired; the server keeps those that it has", r.kubeconfig)
	}
	return nil
}

// serverOf returns the address of the server in a kubeconfig with one context.
func serverOf(text []byte) string {
	config, err := clientcmd.Load(text)
	if err != nil || config.Contexts[config.CurrentContext] == nil {
		return ""
	}
	if to := config.Clusters[config.Contexts[config.CurrentContext].Cluster]; to != nil {
		return to.Server
	}
	return ""
}

// offerCluster creates the Location that offers all physical clusters, if there is no Location.
func offerCluster(ctx context.Context, a *command.App, srv *remote.Server) error {
	here := srv.Base.Path
	locations, err := srv.Objects(here, scheduling.GroupVersion, "locations")
	if err != nil {
		return err
	}
	have, err := locations.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(have.Items) > 0 {
		return err
	}
	l := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "Location",
		"metadata": map[string]any{"name": defaultName}, "spec": map[string]any{"description": "All physical clusters"}}}
	if _, err := locations.Create(ctx, l, metav1.CreateOptions{FieldManager: remote.UserAgent}); err != nil && !apierrors.IsAlreadyExists(err) {
		return remote.About(here, "cannot create the Location %q: %w", defaultName, err)
	}
	a.Print.Note("Location %q created: it offers all physical clusters of the workspace.", defaultName)
	return nil
}
