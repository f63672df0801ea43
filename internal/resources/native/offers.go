package native

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// An Offer is an API group whose kinds clusters have only through bindings. Build is called once,
// with the first request for one of its kinds.
type Offer struct {
	Group
	// Resources are the kinds. Build returns the registries of just these.
	Resources []catalog.Offer
}

// Offers returns the kinds of offers. newServer returns the API server in which they are installed.
func (s Groups) Offers(in *Installed, all []Offer, newServer func() (*genericapiserver.GenericAPIServer, error)) (*catalog.Offers, error) {
	var resources []catalog.Offer
	seen := map[schema.GroupResource]bool{}
	for _, o := range all {
		for _, r := range o.Resources {
			switch {
			case seen[r.GroupResource]:
				return nil, fmt.Errorf("there are two offers of %s", r.GroupResource)
			case in.Own[r.GroupResource]:
				return nil, fmt.Errorf("%s is offered to bindings, but every logical cluster has it", r.GroupResource)
			}
			seen[r.GroupResource] = true
			resources = append(resources, r)
		}
	}
	return catalog.NewOffers(resources, func() (*genericapiserver.GenericAPIServer, error) {
		to, err := newServer()
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			if err := s.installOffer(o, to); err != nil {
				return nil, fmt.Errorf("API group %s: %w", o.Name, err)
			}
		}
		return to, nil
	}), nil
}

// installOffer installs the registries of an offer. Their objects are JSON, as custom resources are:
// all code for custom resources can read them.
func (s Groups) installOffer(o Offer, to *genericapiserver.GenericAPIServer) error {
	info, err := o.Build(s.Caches.Customs(encodings(s.Version, runtime.ContentTypeJSON).NewConfig))
	if err != nil {
		return err
	}
	withoutEmpty(&info)
	if o.Name == "core" {
		return to.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info)
	}
	return to.InstallAPIGroup(&info)
}
