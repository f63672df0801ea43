package upstream

import (
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// NewLevels returns the libraries' API Priority and Fairness with a configuration that never
// changes. seats is the number of requests in flight at all priority levels together.
//
// At the next minor version: look at presyncFlowSchemaStatus and digestConfigObjects in
// k8s.io/apiserver/pkg/util/flowcontrol/apf_controller.go. They write the status of a flow
// schema unless it has this condition already, with the same text, and there is no client to
// write it with.
func NewLevels(schemas []*flowcontrolv1.FlowSchema, configurations []*flowcontrolv1.PriorityLevelConfiguration, seats int) utilflowcontrol.Interface {
	factory := informers.NewSharedInformerFactory(nil, 0) // never started
	ofSchemas, ofLevels := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, s := range schemas {
		s = s.DeepCopy()
		s.UID = types.UID(s.Name)
		s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{
			Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
			Message: "This FlowSchema references the PriorityLevelConfiguration object named \"" + s.Spec.PriorityLevelConfiguration.Name + "\" and it exists",
		}}
		_ = ofSchemas.Add(s) // fails only for objects without metadata
	}
	for _, p := range configurations {
		p = p.DeepCopy()
		p.UID = types.UID(p.Name)
		_ = ofLevels.Add(p)
	}
	for of, indexer := range map[runtime.Object]cache.Indexer{&flowcontrolv1.FlowSchema{}: ofSchemas, &flowcontrolv1.PriorityLevelConfiguration{}: ofLevels} {
		factory.InformerFor(of, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return fixed{indexer: indexer} })
	}
	return utilflowcontrol.New(factory, nil, seats)
}

// fixed is an informer of objects that never change. It implements the methods that the
// libraries' API Priority and Fairness calls; all others panic.
//
// At the next minor version: look at newTestableController in
// k8s.io/apiserver/pkg/util/flowcontrol/apf_controller.go, which uses the informers.
type fixed struct {
	cache.SharedIndexInformer // nil
	indexer                   cache.Indexer
}

// GetIndexer implements [cache.SharedIndexInformer].
func (f fixed) GetIndexer() cache.Indexer { return f.indexer }

// HasSynced implements [cache.SharedIndexInformer].
func (fixed) HasSynced() bool { return true }

// AddEventHandler implements [cache.SharedIndexInformer].
func (f fixed) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	for _, o := range f.indexer.List() {
		h.OnAdd(o, true)
	}
	return nil, nil
}
