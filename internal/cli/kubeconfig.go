package cli

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
	currentContext  = "workspace.kcp.io/current"
	previousContext = "workspace.kcp.io/previous"
)

// clustersPath precedes the name or path of a cluster in a URL.
const clustersPath = "/clusters/"

// A place is a logical cluster at the server in the user's kubeconfig. That server may be a
// proxy, with a URL that the objects in kcp do not have.
type place struct {
	server string // URL up to clustersPath
	path   cluster.Path
}

// URL returns the server of p in a kubeconfig.
func (p place) URL() string { return p.server + clustersPath + string(p.path) }

// at returns the place of another cluster on the same server.
func (p place) at(path cluster.Path) place { return place{p.server, path} }

// parsePlace parses the server of a kubeconfig. It reports whether that is the URL of one
// logical cluster.
func parsePlace(server string) (place, bool) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return place{}, false
	}
	before, after, _ := strings.Cut(u.Path, clustersPath)
	path, err := cluster.ParsePath(strings.TrimSuffix(after, "/"))
	if err != nil || strings.HasPrefix(before, "/services/") { // those are views of many clusters
		return place{}, false
	}
	u.Path, u.RawPath = before, ""
	return place{u.String(), path}, true
}

// A session is the kubeconfig as a command read it.
type session struct {
	access clientcmd.ConfigAccess
	// context is the name of the current context, entry its content, and cluster the
	// content of its cluster. Flags such as --context and --user are applied.
	context string
	entry   *api.Context
	cluster *api.Cluster
	// was and wasCluster are entry and cluster without the flags.
	was        *api.Context
	wasCluster *api.Cluster

	here place        // the current workspace
	rest *rest.Config // for here

	lockWithin time.Duration
}

// openSession reads the kubeconfig that the flags choose. It fails if the current context
// is not of a workspace.
func openSession(flags *genericclioptions.ConfigFlags) (*session, error) {
	loader := flags.ToRawKubeConfigLoader()
	s := &session{access: loader.ConfigAccess(), lockWithin: lockWithin}
	config, err := s.access.GetStartingConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot read the kubeconfig: %w", err)
	}
	if err := s.choose(config, flags); err != nil {
		return nil, err
	}
	var ok bool
	if s.here, ok = parsePlace(s.cluster.Server); !ok {
		return nil, fmt.Errorf("context %q is not of a workspace: its server %s does not end in /clusters/PATH; run: kubectl config use-context root", s.context, s.cluster.Server)
	}
	if s.rest, err = flags.ToRESTConfig(); err != nil {
		return nil, fmt.Errorf("cannot use context %q: %w", s.context, err)
	}
	return s, nil
}

// choose sets the current context from config and the flags.
func (s *session) choose(config *api.Config, flags *genericclioptions.ConfigFlags) error {
	s.context = config.CurrentContext
	override(&s.context, flags.Context)
	if s.context == "" {
		return s.noContext(config)
	}
	entry, ok := config.Contexts[s.context]
	if !ok {
		return fmt.Errorf("there is no context %q in the kubeconfig; run: kubectl config get-contexts", s.context)
	}
	s.was, s.wasCluster = entry, config.Clusters[entry.Cluster]
	s.entry = entry.DeepCopy()
	override(&s.entry.Cluster, flags.ClusterName)
	override(&s.entry.AuthInfo, flags.AuthInfoName)
	override(&s.entry.Namespace, flags.Namespace)
	cluster, ok := config.Clusters[s.entry.Cluster]
	if !ok {
		return fmt.Errorf("context %q refers to cluster %q, which the kubeconfig does not have; run: kubectl config view", s.context, s.entry.Cluster)
	}
	s.cluster = cluster.DeepCopy()
	override(&s.cluster.Server, flags.APIServer)
	return nil
}

// noContext returns the error for a kubeconfig without a current context.
func (s *session) noContext(config *api.Config) error {
	const fix = "set KUBECONFIG to a kubeconfig, such as .kcp/admin.kubeconfig in the directory where the server was started"
	file := s.access.GetDefaultFilename()
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

// enter makes to the current workspace, with the user of the current context, which becomes
// the previous one.
func (s *session) enter(ctx context.Context, to place) error {
	if s.context == currentContext && s.cluster.Server == to.URL() {
		// Entering the current workspace does not change the previous one.
		return s.change(ctx, func(c *api.Config) { c.CurrentContext = currentContext })
	}
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, currentContext, s.entry, s.cluster, to.URL())
		c.CurrentContext = currentContext
	})
}

// enterAs makes the workspace of another session the current one, with the user of that
// session. It is the way back to the previous workspace.
func (s *session) enterAs(ctx context.Context, other *session) error {
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, currentContext, other.entry, other.cluster, other.cluster.Server)
		c.CurrentContext = currentContext
	})
}

// remember makes the current context the previous one, without the flags: to go on as
// another user does not change the previous workspace. The previous context refers to the
// same cluster, or to a copy if that cluster is about to change.
func (s *session) remember(c *api.Config) {
	if s.wasCluster != nil && (s.was.Cluster == currentContext || s.was.Cluster == previousContext) {
		set(c, previousContext, s.was, s.wasCluster, s.wasCluster.Server)
		return
	}
	entry := s.was.DeepCopy()
	entry.LocationOfOrigin = originOf(c.Contexts[previousContext])
	c.Contexts[previousContext] = entry
}

// Modes of createContext.
const (
	use     = 1 << iota // make it the current context
	replace             // replace a context of that name
)

// createContext adds a context of that name for the place to. Mode is use, replace, both or
// neither. It reports whether there was a context of that name.
func (s *session) createContext(ctx context.Context, name string, to place, mode int) (existed bool, err error) {
	err = s.change(ctx, func(c *api.Config) {
		_, existed = c.Contexts[name]
		if _, taken := c.Clusters[name]; (existed || taken) && mode&replace == 0 {
			existed = true
			return
		}
		set(c, name, s.entry, s.cluster, to.URL())
		if mode&use != 0 {
			c.CurrentContext = name
		}
	})
	if err == nil && existed && mode&replace == 0 {
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
