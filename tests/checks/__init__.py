"""Every check against right answers, planted mistakes and data that lies."""
