package server

import (
	"context"
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// workspaceIssuers holds the identity providers of the WorkspaceAuthenticationConfigurations
// of all clusters, as they are written there.
type workspaceIssuers struct {
	table *store.Table[[][]byte]
}

// issuersForm is what is read of a stored WorkspaceAuthenticationConfiguration.
type issuersForm struct {
	Spec struct {
		JWT []json.RawMessage `json:"jwt"`
	} `json:"spec"`
}

func newWorkspaceIssuers(s *store.Store, identity string) *workspaceIssuers {
	gr := schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspaceauthenticationconfigurations"}
	return &workspaceIssuers{store.NewCustomTable(s, store.CustomResource(gr, identity), func(f *issuersForm) ([][]byte, error) {
		all := make([][]byte, len(f.Spec.JWT))
		for i, jwt := range f.Spec.JWT {
			all[i] = jwt
		}
		return all, nil
	})}
}

// issuersOf returns the identity providers that the type of a workspace names. They are in
// the cluster of the type.
func (s *Server) issuersOf(ctx context.Context, c cluster.Name) []auth.WorkspaceIssuer {
	t, err := s.types.Of(ctx, c)
	if err != nil || t == nil {
		return nil
	}
	var all []auth.WorkspaceIssuer
	for _, ref := range t.Spec.AuthenticationConfigurations {
		texts, _ := s.issuers.table.Get(t.Cluster, "", ref.Name)
		for _, text := range texts {
			all = append(all, auth.NewWorkspaceIssuer(t.Cluster, text))
		}
	}
	return all
}

// callsOf returns what calls servers for a tenant.
func (s *Server) callsOf(tenant cluster.Name, bundle []byte) (http.RoundTripper, error) {
	return s.dialer.For(tenant, bundle)
}
