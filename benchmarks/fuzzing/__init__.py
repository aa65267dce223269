"""Hostile input: mutations of valid files, walks through planner, controller and buffer, and which errors may come."""
