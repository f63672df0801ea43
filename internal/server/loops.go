package server

import (
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
