package workspaces

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// ttl is the default lifetime of a token.
	ttl = 24 * time.Hour

	// handedOut marks the service accounts and bindings that "ws kubeconfig" creates.
	handedOut = "kubectl-ws-kubeconfig"

	accountPrefix = "system:serviceaccount:"
)

// A handout is a kubeconfig of a service account for one workspace.
type handout struct {
	as, role, file string
	ttl            time.Duration
	namespace      string
	account        string
}

func kubeconfigCommand(a *command.App) *cobra.Command {
	var h handout
	cmd := &cobra.Command{
		Use:   "kubeconfig [WORKSPACE] --as SERVICEACCOUNT",
		Short: "Create a kubeconfig for a program that works in one workspace",
		Long: `Create a kubeconfig for a program that works in one workspace, such as a GitOps tool or Terraform. The program gets a service account of that workspace, which is created if it does not exist, and a token that expires. The kubeconfig contains none of your own credentials.

The kubeconfig goes to standard output, or to a file that only you can read.`,
		Example: `  # Create a kubeconfig that may edit the workspace team for a day
  kubectl ws kubeconfig team --as serviceaccount deployer --role edit -f deployer.kubeconfig

  # Create another kubeconfig of that account for an hour, in the current workspace
  kubectl ws kubeconfig --as deployer --ttl 1h

  # Use a service account in another namespace
  kubectl ws kubeconfig :root:org:team --as system:serviceaccount:ci:builder --role admin`,
		Args:              cobra.RangeArgs(0, 2),
		ValidArgsFunction: a.Complete,
	}
	flags := cmd.Flags()
	flags.StringVar(&h.as, "as", "", "Service account, in the namespace default or that of -n: NAME, serviceaccount NAME or system:serviceaccount:NAMESPACE:NAME.")
	flags.StringVar(&h.role, "role", "", "Role to give to the service account: "+strings.Join(everywhere(), ", ")+" or a ClusterRole of the workspace. (default none: its permissions do not change)")
	flags.DurationVar(&h.ttl, "ttl", ttl, "Lifetime of the token, at least 10m. The server may shorten it.")
	flags.StringVarP(&h.file, "filename", "f", "-", "File to write; - for standard output.")
	output.CompleteFlag(cmd, "role", cobra.FixedCompletions(everywhere(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args, err := h.split(args)
		if err != nil {
			return err
		}
		if len(args) > 1 {
			return command.Misused(cmd, args)
		}
		if err := h.name(*a.Flags.Namespace); err != nil {
			return err
		}
		return handOut(cmd.Context(), a, args, h)
	}
	return cmd
}

// split handles the form "--as KIND NAME", whose name is the last argument. It returns the
// arguments before the name.
func (h *handout) split(args []string) ([]string, error) {
	switch strings.ToLower(h.as) {
	case "user", "group":
		subject := "NAME"
		if len(args) > 0 {
			subject = output.ShellWord(args[len(args)-1])
		}
		if h.as = strings.ToLower(h.as); h.as == "group" {
			subject += " --group"
		}
		return nil, fmt.Errorf("--as %s is not possible: kcp issues tokens to service accounts only; to let a %[1]s work in the workspace, run: kubectl ws share %s --role %s", h.as, subject, cmp.Or(h.role, "edit"))
	case "serviceaccount", "sa":
		if len(args) == 0 {
			return nil, errors.New("--as serviceaccount needs a name, as in --as serviceaccount deployer")
		}
		h.as = args[len(args)-1]
		return args[:len(args)-1], nil
	}
	return args, nil
}

// name sets the namespace and the name of the service account from --as.
func (h *handout) name(namespace string) error {
	h.namespace, h.account = namespace, strings.TrimPrefix(h.as, "serviceaccount/")
	if h.namespace == "" {
		h.namespace = metav1.NamespaceDefault
	}
	if rest, ok := strings.CutPrefix(h.as, accountPrefix); ok {
		h.namespace, h.account, _ = strings.Cut(rest, ":")
	}
	if h.account == "" || h.namespace == "" || strings.ContainsAny(h.account, ":/") {
		return errors.New("the service account is missing; add --as NAME or --as " + accountPrefix + "NAMESPACE:NAME")
	}
	if h.ttl < 10*time.Minute {
		return fmt.Errorf("--ttl %s is too short: the minimum is 10m", h.ttl)
	}
	return nil
}

func handOut(ctx context.Context, a *command.App, args []string, h handout) error {
	s, srv, err := openAt(ctx, a, args)
	if err != nil {
		return err
	}
	if err := h.checkFile(srv.Base.Path); err != nil {
		return err
	}
	config, err := bareConfig(s, srv.Base, h.account)
	if err != nil {
		return err
	}
	token, err := requestToken(ctx, a, srv, h)
	if err != nil {
		return remote.About(srv.Base.Path, "cannot create a kubeconfig for workspace %q: %w", srv.Base.Path, err)
	}
	config.AuthInfos[h.account] = &api.AuthInfo{Token: token.Status.Token}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if h.file == "-" {
		_, err = a.Print.Out.Write(text)
	} else {
		err = os.Chmod(h.file, kubeconfig.Private) // others may read an existing file
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.WriteFile(h.file, text, kubeconfig.Private)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	until := token.Status.ExpirationTimestamp
	a.Print.Note("The kubeconfig is for %s%s:%s in '%s'. It expires at %s.", accountPrefix, h.namespace, h.account, srv.Base.Path, until.UTC().Format(time.RFC3339))
	if h.file != "-" {
		a.Print.Note("Try it: kubectl auth whoami --kubeconfig %s", h.file)
	}
	return nil
}

// checkFile returns an error if the file exists and is not from an earlier call.
func (h handout) checkFile(path cluster.Path) error {
	if h.file == "-" {
		return nil
	}
	old, err := clientcmd.LoadFromFile(h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(old.Contexts) == 1 && old.Contexts[string(path)] != nil {
		return nil
	}
	return fmt.Errorf("%s exists and is not a kubeconfig of this workspace; choose another file for -f", h.file)
}

// bareConfig returns a kubeconfig for the place at and a user of that name. It has everything
// that is needed to connect to the server, and no credentials.
func bareConfig(s *kubeconfig.Session, at kubeconfig.Place, user string) (*api.Config, error) {
	from := s.Cluster
	to := &api.Cluster{
		Server: at.URL(), TLSServerName: from.TLSServerName, InsecureSkipTLSVerify: from.InsecureSkipTLSVerify,
		ProxyURL: from.ProxyURL, DisableCompression: from.DisableCompression,
	}
	if u, err := url.Parse(from.ProxyURL); err == nil && u.User != nil { // the caller's own password
		u.User = nil
		to.ProxyURL = u.String()
	}
	// The configuration of the connection has what flags override.
	tls := s.Rest.TLSClientConfig
	to.CertificateAuthorityData, to.InsecureSkipTLSVerify = tls.CAData, tls.Insecure
	if tls.ServerName != "" {
		to.TLSServerName = tls.ServerName
	}
	if len(to.CertificateAuthorityData) == 0 && tls.CAFile != "" {
		text, err := os.ReadFile(tls.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate authority of the server: %w", err)
		}
		to.CertificateAuthorityData = text
	}
	config, name := api.NewConfig(), string(at.Path)
	config.Clusters[name] = to
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	return config, nil
}

// requestToken creates the service account and its binding unless they exist, and a token.
func requestToken(ctx context.Context, a *command.App, srv *remote.Server, h handout) (*authenticationv1.TokenRequest, error) {
	core, err := coreclient.NewForConfigAndClient(srv.In(srv.Base.Path), srv.Client)
	if err != nil {
		return nil, err
	}
	accounts := core.ServiceAccounts(h.namespace)
	if _, err := accounts.Get(ctx, h.account, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: h.account, Labels: map[string]string{managedBy: handedOut}}}
		_, err = accounts.Create(ctx, account, metav1.CreateOptions{FieldManager: remote.UserAgent})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		a.Print.Note("Created service account %s in namespace %s.", h.account, h.namespace)
		if h.role == "" {
			a.Print.Note("note: the service account has no permissions; add --role %s", strings.Join(everywhere(), "|"))
		}
	} else if err != nil {
		return nil, err
	}
	if h.role != "" {
		if err := giveRole(ctx, a, srv, h); err != nil {
			return nil, err
		}
	}
	seconds := int64(h.ttl / time.Second)
	token, err := accounts.CreateToken(ctx, h.account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err == nil && token.Status.Token == "" {
		err = errors.New("the server's answer has no token")
	}
	return token, err
}

// giveRole binds the service account to the role in the whole workspace.
func giveRole(ctx context.Context, a *command.App, srv *remote.Server, h handout) error {
	rbac, err := rbacIn(srv, srv.Base.Path)
	if err != nil {
		return err
	}
	if err := checkRole(ctx, rbac, h.role); err != nil {
		return err
	}
	name := "kubeconfig:" + h.role + ":" + h.namespace + ":" + h.account
	if strings.Contains(h.role, ":") || len(name) > longest {
		sum := sha256.Sum256([]byte(name))
		name = "kubeconfig:" + hex.EncodeToString(sum[:16])
	}
	done, err := bind(ctx, rbac.ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{managedBy: handedOut}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: h.role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: h.namespace, Name: h.account}},
	})
	if done {
		a.Print.Note("Gave the service account role %s by ClusterRoleBinding %s.", h.role, name)
	}
	return err
}
