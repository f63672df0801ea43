// Package kubeconfig reads and changes the user's kubeconfig. It hides how a kubeconfig records
// the current workspace, and that other programs change the file, too.
package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cluster"
)

// The contexts, and the clusters of the same names, that entering a workspace rewrites. It
// changes no other.
const (
	CurrentContext  = "workspace.kcp.io/current"
	PreviousContext = "workspace.kcp.io/previous"
)

// clustersPath precedes the name or path of a cluster in a URL.
const clustersPath = "/clusters/"

// A Place is a logical cluster at the server in the user's kubeconfig. That server may be a
// proxy, with a URL that the objects in kcp do not have.
type Place struct {
	Server string // URL up to clustersPath
	Path   cluster.Path
}

// URL returns the server of p in a kubeconfig.
func (p Place) URL() string { return p.Server + clustersPath + string(p.Path) }

// At returns the place of another cluster on the same server.
func (p Place) At(path cluster.Path) Place { return Place{p.Server, path} }

// ParsePlace parses the server of a kubeconfig. It reports whether that is the URL of one
// logical cluster.
func ParsePlace(server string) (Place, bool) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return Place{}, false
	}
	before, after, _ := strings.Cut(u.Path, clustersPath)
	path, err := cluster.ParsePath(strings.TrimSuffix(after, "/"))
	if err != nil || strings.HasPrefix(before, "/services/") { // those are views of many clusters
		return Place{}, false
	}
	u.Path, u.RawPath = before, ""
	return Place{u.String(), path}, true
}

// A Session is the kubeconfig as a command read it.
type Session struct {
	Access clientcmd.ConfigAccess
	// Context is the name of the current context, entry its content, and cluster the
	// content of its cluster. Flags such as --context and --user are applied.
	Context string
	entry   *api.Context
	Cluster *api.Cluster
	// was and wasCluster are entry and cluster without the flags.
	was        *api.Context
	wasCluster *api.Cluster

	Here Place        // the current workspace
	Rest *rest.Config // for here

	lockWithin time.Duration
}

// Open reads the kubeconfig that the flags choose. It fails if the current context
// is not of a workspace.
func Open(flags *genericclioptions.ConfigFlags) (*Session, error) {
	loader := flags.ToRawKubeConfigLoader()
	s := &Session{Access: loader.ConfigAccess(), lockWithin: lockWithin}
	config, err := s.Access.GetStartingConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot read the kubeconfig: %w", err)
	}
	if err := s.choose(config, flags); err != nil {
		return nil, err
	}
	var ok bool
	if s.Here, ok = ParsePlace(s.Cluster.Server); !ok {
		return nil, fmt.Errorf("context %q is not of a workspace: its server %s does not end in /clusters/PATH; run: kubectl config use-context root", s.Context, s.Cluster.Server)
	}
	if s.Rest, err = flags.ToRESTConfig(); err != nil {
		return nil, fmt.Errorf("cannot use context %q: %w", s.Context, err)
	}
	return s, nil
}

// choose sets the current context from config and the flags.
func (s *Session) choose(config *api.Config, flags *genericclioptions.ConfigFlags) error {
	s.Context = config.CurrentContext
	override(&s.Context, flags.Context)
	if s.Context == "" {
		return s.noContext(config)
	}
	entry, ok := config.Contexts[s.Context]
	if !ok {
		return fmt.Errorf("there is no context %q in the kubeconfig; run: kubectl config get-contexts", s.Context)
	}
	s.was, s.wasCluster = entry, config.Clusters[entry.Cluster]
	s.entry = entry.DeepCopy()
	override(&s.entry.Cluster, flags.ClusterName)
	override(&s.entry.AuthInfo, flags.AuthInfoName)
	override(&s.entry.Namespace, flags.Namespace)
	cluster, ok := config.Clusters[s.entry.Cluster]
	if !ok {
		return fmt.Errorf("context %q refers to cluster %q, which the kubeconfig does not have; run: kubectl config view", s.Context, s.entry.Cluster)
	}
	s.Cluster = cluster.DeepCopy()
	override(&s.Cluster.Server, flags.APIServer)
	return nil
}

// noContext returns the error for a kubeconfig without a current context.
func (s *Session) noContext(config *api.Config) error {
	const fix = "set KUBECONFIG to a kubeconfig, such as .kcp/admin.kubeconfig in the directory where the server was started"
	file := s.Access.GetDefaultFilename()
	if len(config.Contexts) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(config.Contexts)))
		if _, ok := config.Contexts[string(cluster.Root)]; ok {
			name = string(cluster.Root)
		}
		return fmt.Errorf("%s has no current context; run: kubectl config use-context %s", file, name)
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no kubeconfig %s; %s", file, fix)
	}
	return fmt.Errorf("the kubeconfig %s has no contexts; %s", file, fix)
}

func override(value, flag *string) {
	if flag != nil && *flag != "" {
		*value = *flag
	}
}

// Enter makes to the current workspace, with the user of the current context, which becomes
// the previous one.
func (s *Session) Enter(ctx context.Context, to Place) error {
	if s.Context == CurrentContext && s.Cluster.Server == to.URL() {
		// Entering the current workspace does not change the previous one.
		return s.change(ctx, func(c *api.Config) { c.CurrentContext = CurrentContext })
	}
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, CurrentContext, s.entry, s.Cluster, to.URL())
		c.CurrentContext = CurrentContext
	})
}

// EnterAs makes the workspace of another session the current one, with the user of that
// session. It is the way back to the previous workspace.
func (s *Session) EnterAs(ctx context.Context, other *Session) error {
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, CurrentContext, other.entry, other.Cluster, other.Cluster.Server)
		c.CurrentContext = CurrentContext
	})
}

// remember makes the current context the previous one, without the flags: to go on as
// another user does not change the previous workspace. The previous context refers to the
// same cluster, or to a copy if that cluster is about to change.
func (s *Session) remember(c *api.Config) {
	if s.wasCluster != nil && (s.was.Cluster == CurrentContext || s.was.Cluster == PreviousContext) {
		set(c, PreviousContext, s.was, s.wasCluster, s.wasCluster.Server)
		return
	}
	entry := s.was.DeepCopy()
	entry.LocationOfOrigin = originOf(c.Contexts[PreviousContext])
	c.Contexts[PreviousContext] = entry
}

// Modes of createContext.
const (
	Use     = 1 << iota // make it the current context
	Replace             // replace a context of that name
)

// CreateContext adds a context of that name for the place to. Mode is use, replace, both or
// neither. It reports whether there was a context of that name.
func (s *Session) CreateContext(ctx context.Context, name string, to Place, mode int) (existed bool, err error) {
	err = s.change(ctx, func(c *api.Config) {
		_, existed = c.Contexts[name]
		if _, taken := c.Clusters[name]; (existed || taken) && mode&Replace == 0 {
			existed = true
			return
		}
		set(c, name, s.entry, s.Cluster, to.URL())
		if mode&Use != 0 {
			c.CurrentContext = name
		}
	})
	if err == nil && existed && mode&Replace == 0 {
		err = fmt.Errorf("context %q already exists in the kubeconfig; add --overwrite to replace it", name)
	}
	return existed, err
}

// set adds a context and a cluster of that name to c: copies of entry and cluster with
// another server. Entries that c has already stay in the files they came from.
func set(c *api.Config, name string, entry *api.Context, cluster *api.Cluster, server string) {
	entry, cluster = entry.DeepCopy(), cluster.DeepCopy()
	entry.Cluster, cluster.Server = name, server
	entry.LocationOfOrigin, cluster.LocationOfOrigin = originOf(c.Contexts[name]), ""
	if old := c.Clusters[name]; old != nil {
		cluster.LocationOfOrigin = old.LocationOfOrigin
	}
	c.Contexts[name], c.Clusters[name] = entry, cluster
}

func originOf(entry *api.Context) string {
	if entry == nil {
		return ""
	}
	return entry.LocationOfOrigin
}
