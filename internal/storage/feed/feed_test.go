package feed

import (
	"testing"
	"time"
)

// The age of data is unknown before the first confirmation, and after a clock was set back.
func TestAgeOfAConfirmation(t *testing.T) {
	now := time.Now()
	var c confirmation
	if age := c.age(now); age < evidenceFor {
		t.Errorf("the age before a confirmation is %v", age)
	}
	c.raise(now)
	if age := c.age(now.Add(time.Minute)); age != time.Minute {
		t.Errorf("the age after a minute is %v", age)
	}
	c.raise(now.Add(-time.Second))
	if age := c.age(now); age != 0 {
		t.Errorf("the age after an older confirmation is %v", age)
	}
	if age := c.age(now.Add(-time.Minute)); age < evidenceFor {
		t.Errorf("the age by a clock that was set back is %v", age)
	}
}
