package server

import (
	"context"

	"github.com/unforked/kcp/internal/control"
)

// runLoops runs every loop until the server closes.
func (s *Server) runLoops() error {
	loops := s.loops
	if s.config.Loops != nil {
		further, err := s.config.Loops(s)
		if err != nil {
			return err
		}
		loops = append(loops, further...)
	}
	s.running.Go(func() { control.RunAll(s.ctx, loops...) })
	return nil
}

// Go runs f until the server closes, which waits for it to return.
func (s *Server) Go(f func(context.Context)) { s.running.Go(func() { f(s.ctx) }) }
