package server

import (
	"errors"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// addHealthChecks adds the checks of the server to the health endpoints.
func (s *Server) addHealthChecks(cfg *genericapiserver.Config) {
	cfg.HealthzChecks = append(cfg.HealthzChecks, healthz.NamedCheck("feed", s.feedReady))
	cfg.HealthzChecks = append(cfg.HealthzChecks, s.encryption.Health()...)
	cfg.ReadyzChecks = append(cfg.ReadyzChecks, s.encryption.Health()...)
	cfg.ReadyzChecks = append(cfg.ReadyzChecks,
		healthz.NamedCheck("projections", func(*http.Request) error { return s.store.Feed().InStep() }),
		healthz.NamedCheck("etcd", s.etcdReady))
}

// installEtcdHealth serves the check of etcd by its name also where it does not count. It is a
// readiness check and no liveness check: without etcd no request can be served, but a restart would
// not help.
func (s *Server) installEtcdHealth() {
	for _, path := range []string{"/livez/etcd", "/healthz/etcd"} {
		s.generic.Handler.NonGoRestfulMux.UnlistedHandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			if err := s.etcdReady(req); err != nil {
				http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
				return
			}
			_, _ = w.Write([]byte("ok"))
		})
	}
}

// etcdReady returns an error, without the addresses of etcd, if etcd does not answer.
func (s *Server) etcdReady(req *http.Request) error {
	if s.store.Reachable(req.Context()) != nil {
		return errors.New("etcd does not answer")
	}
	return nil
}

func (s *Server) feedReady(*http.Request) error {
	select {
	case <-s.store.Feed().Ready():
		return nil
	default:
		return errors.New("the server is still reading the stored objects")
	}
}
