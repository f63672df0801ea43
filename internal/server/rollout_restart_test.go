package server_test

import (
	"fmt"
	"testing"

	"github.com/unforked/kcp/internal/server"
)

// TestARolloutGoesOnAfterARestart shows that the stages of a rollout hold after a restart, and that
// the new process takes the next step.
func TestARolloutGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	root := at(t, s, "root", server.System())
	p, canary, rest := root.workspace("provider"), root.workspace("canary"), root.workspace("rest")
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
		c.create(sharedWidgets, newWidget("w"))
	}
	p.create(apiRollouts, newRollout("new", fmt.Sprintf(`[{name: canary, clusters: [%s], pause: 24h}]`, canary.name), "v2"))
	p.rollout("new", "Paused", 1)
	canary.hasSchema("v2")
	s.Close()

	s = start(t, dir)
	defer s.Close()
	p, canary, rest = at(t, s, p.name, server.System()), at(t, s, canary.name, server.System()), at(t, s, rest.name, server.System())
	p.rollout("new", "Paused", 1)
	canary.hasSchema("v2")
	rest.hasSchema("v1")
	p.patch(apiRollouts, "new", fmt.Sprintf(`{"spec":{"rings":[{"name":"canary","clusters":[%q]}]}}`, canary.name))
	p.rollout("new", "Completed", 2)
	rest.hasSchema("v2")
	canary.hasSchema("v2")
}
