package controllers

import (
	"context"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// DefinitionNames accepts the names of definitions that conflicted with another definition
// of their group or with a bound API, after that definition or binding has changed.
func DefinitionNames(d Deps) control.Loop {
	waiting := &unsettledDefinitions{trigger.New(func() []control.Key { return trigger.Keys(d.Definitions.Unsettled()) }), d.Definitions}
	d.Store.Feed().Follow(waiting)
	return control.Loop{
		Name: "definition-names",
		On:   d.on(waiting.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			client, err := apiextensionsclient.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			// Each write accepts the names if possible, even a write without changes.
			_, err = client.CustomResourceDefinitions().Patch(ctx, k.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return utilerrors.FilterOut(err, apierrors.IsNotFound)
		},
	}
}

// unsettledDefinitions finds the definitions with conflicts that a change of another
// definition, or of a binding, may solve.
type unsettledDefinitions struct {
	*trigger.Inbox
	definitions *define.Definitions
}

// Apply implements [feed.Follower].
func (f *unsettledDefinitions) Apply(e feed.Event) {
	var freed []keys.Key
	switch e.Key.Resource {
	case define.Resource():
		freed = f.definitions.UnsettledBeside(e.Key.Cluster, e.Key.Name)
	case bind.BindingResource():
		freed = f.definitions.UnsettledIn(e.Key.Cluster)
	}
	for _, k := range trigger.Keys(freed) {
		f.Put(k)
	}
}
