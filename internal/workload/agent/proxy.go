package agent

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	slashes "path"
	"regexp"

	"k8s.io/client-go/rest"
)

// A proxy passes requests of the server on to the physical cluster, with the credentials of the
// agent. It passes on only requests about pods in namespaces of workloads.
type proxy struct {
	to        *httputil.ReverseProxy
	passes    *regexp.Regexp // paths, for all methods
	namespace *regexp.Regexp // the path of a namespace of workloads, whose marks the server reads
}

func newProxy(config *rest.Config) (*proxy, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"} // requests may be upgraded
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &proxy{passes: passed(), namespace: regexp.MustCompile(`^/api/v1/namespaces/kcp-[a-z0-9]+$`), to: &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path})
			r.Out.Host = at.Host
			for _, name := range []string{"Authorization", "X-Remote-User", "X-Remote-Group"} {
				r.Out.Header.Del(name)
			}
			for name := range r.Out.Header {
				if impersonates(name) {
					r.Out.Header.Del(name)
				}
			}
		},
	}}, nil
}

func impersonates(header string) bool {
	return len(header) > len("Impersonate-") && http.CanonicalHeaderKey(header)[:len("Impersonate-")] == "Impersonate-"
}

// passed matches the paths that the server may reach.
func passed() *regexp.Regexp {
	return regexp.MustCompile(`^/(version|readyz|livez|api/v1/namespaces/kcp-[a-z0-9]+/(pods|events)(/.*)?|apis/metrics\.k8s\.io/v1beta1/namespaces/kcp-[a-z0-9]+/pods(/.*)?|api/v1/pods|apis/apps/v1/namespaces/kcp-[a-z0-9]+/replicasets(/.*)?)$`)
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	about := req.Method == http.MethodGet && p.namespace.MatchString(req.URL.Path)
	if slashes.Clean(req.URL.Path) != req.URL.Path || !about && (!p.passes.MatchString(req.URL.Path) || !p.passes.MatchString(req.URL.EscapedPath())) {
		http.Error(w, "the agent passes on only requests about pods of workloads", http.StatusForbidden)
		return
	}
	p.to.ServeHTTP(w, req)
}
