"""TRL's trainers on a mixture, and the preparation of their data sets stream by stream."""
