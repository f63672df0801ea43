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

// The contexts, and the clusters of the same names, that belong to the
// navigation. Entering a workspace rewrites these two and no other.
const (
	currentContext  = "workspace.kcp.io/current"
	previousContext = "workspace.kcp.io/previous"
)

// clustersPath is what comes in a URL before the name or path of a cluster.
const clustersPath = "/clusters/"

// A place is a logical cluster as the user reaches it: through the server in
// the kubeconfig, which may be a proxy that no object knows about.
type place struct {
	server string // URL up to clustersPath
	path   cluster.Path
}

// URL returns what a kubeconfig has as its server for p.
func (p place) URL() string { return p.server + clustersPath + string(p.path) }

// at returns the place of another cluster on the same server.
func (p place) at(path cluster.Path) place { return place{p.server, path} }

// parsePlace returns the place that a server URL leads to, and whether it is
// the URL of one logical cluster and of nothing else.
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

// A session is the kubeconfig as one run of a command finds it.
type session struct {
	access clientcmd.ConfigAccess
	// context is the name of the context in use, entry what it says, and
	// cluster what the cluster of that context says; flags such as --context
	// and --user are already applied.
	context string
	entry   *api.Context
	cluster *api.Cluster
	// was and wasCluster are the same without what flags say.
	was        *api.Context
	wasCluster *api.Cluster

	here place
	rest *rest.Config // for here

	lockWithin time.Duration
}

// openSession reads the kubeconfig that flags choose. Where the user is must
// be a workspace: anything else is an error.
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
		return nil, fmt.Errorf("context %q is not in a workspace: its server %s does not end in /clusters/<path>; run: kubectl config use-context root", s.context, s.cluster.Server)
	}
	if s.rest, err = flags.ToRESTConfig(); err != nil {
		return nil, fmt.Errorf("cannot use context %q: %w", s.context, err)
	}
	return s, nil
}

// choose sets the context in use from config and what flags override in it.
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
		return fmt.Errorf("context %q is of a cluster %q that the kubeconfig does not have; run: kubectl config view", s.context, s.entry.Cluster)
	}
	s.cluster = cluster.DeepCopy()
	override(&s.cluster.Server, flags.APIServer)
	return nil
}

// noContext returns why there is no context in use, and what to do about it.
func (s *session) noContext(config *api.Config) error {
	const fix = "set KUBECONFIG to one, as to the .kcp/admin.kubeconfig of the folder that the server was started in"
	file := s.access.GetDefaultFilename()
	if len(config.Contexts) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(config.Contexts)))
		if _, ok := config.Contexts[string(cluster.Root)]; ok {
			name = string(cluster.Root)
		}
		return fmt.Errorf("no context is in use in %s; run: kubectl config use-context %s", file, name)
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no kubeconfig %s; %s", file, fix)
	}
	return fmt.Errorf("there is no context in the kubeconfig %s; %s", file, fix)
}

func override(value, flag *string) {
	if flag != nil && *flag != "" {
		*value = *flag
	}
}

// enter makes the workspace at to the current one, reached with the user of
// the context in use, and remembers that context as the previous one.
func (s *session) enter(ctx context.Context, to place) error {
	if s.context == currentContext && s.cluster.Server == to.URL() {
		return s.change(ctx, func(c *api.Config) { c.CurrentContext = currentContext }) // going nowhere keeps what "-" leads to
	}
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, currentContext, s.entry, s.cluster, to.URL())
		c.CurrentContext = currentContext
	})
}

// enterAs makes the place that another session found the current one, with the
// user of that session: the way back to what was remembered.
func (s *session) enterAs(ctx context.Context, other *session) error {
	return s.change(ctx, func(c *api.Config) {
		s.remember(c)
		set(c, currentContext, other.entry, other.cluster, other.cluster.Server)
		c.CurrentContext = currentContext
	})
}

// remember makes the context in use the previous one, as it is without flags: to
// go on as somebody else changes nothing about where one was. It refers to the same
// cluster, unless that is one which the navigation is about to change.
func (s *session) remember(c *api.Config) {
	if s.wasCluster != nil && (s.was.Cluster == currentContext || s.was.Cluster == previousContext) {
		set(c, previousContext, s.was, s.wasCluster, s.wasCluster.Server)
		return
	}
	entry := s.was.DeepCopy()
	entry.LocationOfOrigin = originOf(c.Contexts[previousContext])
	c.Contexts[previousContext] = entry
}

// How a context is created.
const (
	use     = 1 << iota // it becomes the current one
	replace             // one of that name may be replaced
)

// createContext adds a context of that name for the place to, in a mode that
// is use, replace, both or neither. It reports whether there was one.
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

// set gives c a context and a cluster called name, like entry and cluster but
// for the server. What c has already stays in the file that it came from.
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
