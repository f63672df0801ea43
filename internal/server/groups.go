package server

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/resources/serve"
)

// installGroups installs the built-in API groups, and prepares those that bindings give to clusters.
func (s *Server) installGroups(cfg *genericapiserver.Config, effective basecompatibility.EffectiveVersion) error {
	groups := native.Groups{
		Caches: s.caches, Definitions: s.definitions, Version: effective, RootCA: s.ca, Accounts: s.accounts, Authenticator: s.authn,
		Authorizer: s.authz, Loopback: s.loopback, MaxTokenLife: s.config.Access.maxTokenLife(), ExtendTokens: s.config.Access.extendTokens(),
		MaxExtendedTokenLife: yearOfTokens, EventTTL: s.config.EventTTL, Chosen: s.config.Groups, Further: s.config.Native, Storage: s.config.Storage,
		Kind: s.kind, Settle: func(ctx context.Context) { _ = s.store.Feed().CatchUp(ctx) }, // what is late is in force soon
	}
	var err error
	if s.natives, err = groups.Install(s.generic); err != nil {
		return err
	}
	// Builders change the definitions that they use. From here on each makes its own: documents are
	// built at the same time, and the 6 MB of these are needed no more.
	cfg.OpenAPIV3Config.Definitions = nil
	s.definitions.Offers, err = groups.Offers(s.natives, s.config.Offers, func() (*genericapiserver.GenericAPIServer, error) {
		own := *cfg // requests come to it through the chain and the pool
		own.BuildHandlerChainFunc = func(api http.Handler, _ *genericapiserver.Config) http.Handler { return api }
		own.AdmissionControl = serve.Offering(s.hooks)
		own.OpenAPIConfig, own.OpenAPIV3Config = new(*cfg.OpenAPIConfig), new(*cfg.OpenAPIV3Config) // Complete changes them
		return own.Complete(nil).New("kcp-offers", genericapiserver.NewEmptyDelegateWithCustomHandler(notFound()))
	})
	return err
}

// notFound answers unknown paths with the 404 of kube-apiserver instead of a list of paths.
func notFound() http.Handler {
	return notfoundhandler.New(legacyscheme.Codecs, filters.NoMuxAndDiscoveryIncompleteKey)
}
